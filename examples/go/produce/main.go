// Produce schedules jobs with the client package: after a delay, at a time,
// many at once; it moves one and cancels another.
//
//	go run ./examples/go/produce orders.remind
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: produce TARGET")
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := produce(context.Background(), c, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func produce(ctx context.Context, c *client.Client, target string) error {
	// The id makes it harmless to schedule the same job again, after an error
	// that leaves open whether it was stored, for instance.
	r, err := c.Schedule(ctx, client.Job{ID: "order-17", Target: target, Payload: []byte("order 17")}, time.Second)
	if err != nil {
		return err
	}
	show(r)

	// Headers named Delay-* control the delivery, all others travel with the job.
	reminder := client.Job{ID: "order-18", Target: target, Payload: []byte("order 18"), Header: nats.Header{
		"Delay-Max-Attempts": {"3"},
		"Delay-Backoff":      {"10s,1m"},
		"Customer":           {"4711"},
	}}
	if r, err = c.ScheduleAt(ctx, reminder, time.Now().Add(time.Hour)); err != nil {
		return err
	}
	show(r)

	// A change is answered definitely: done, or the job is running, has finished,
	// or is unknown.
	moved, err := c.Reschedule(ctx, reminder.ID, 2*time.Second)
	if err != nil {
		return err
	}
	fmt.Println(moved.ID, "moved:", moved.Result)

	if err := many(ctx, c, target); err != nil {
		return err
	}
	cancelled, err := c.Cancel(ctx, "reminder-0")
	if err != nil {
		return err
	}
	fmt.Println(cancelled.ID, "cancelled:", cancelled.Result)
	return nil
}

// many schedules jobs without waiting for the answer to each.
func many(ctx context.Context, c *client.Client, target string) error {
	var items []client.Item
	for i := range 100 {
		items = append(items, client.Item{
			Job: client.Job{ID: fmt.Sprint("reminder-", i), Target: target, Payload: fmt.Append(nil, "reminder ", i)},
			In:  24 * time.Hour,
		})
	}
	results, err := c.ScheduleMany(ctx, items)
	if err != nil {
		return err // results says which were refused, and why
	}
	fmt.Println(len(results), "reminders scheduled")
	return nil
}

func show(r client.Receipt) {
	if r.Duplicate {
		fmt.Println(r.ID, "was scheduled before, due", r.Due)
		return
	}
	fmt.Println(r.ID, "due", r.Due, "stored", r.Stored)
}
