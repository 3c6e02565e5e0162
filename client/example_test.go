package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/job"
)

// A job is scheduled under an id of its own, so that it may be repeated, and
// cancelled when it is not needed any more.
func Example() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	order := client.Job{ID: "order-17-expire", Target: "orders.expire", Payload: []byte(`{"order":17}`)}
	r, err := c.Schedule(ctx, order, 15*time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("due", r.Due, "held in", r.Stored)

	change, err := c.Cancel(ctx, order.ID)
	switch {
	case err != nil: // nothing is known: ask again
		log.Print(err)
	case change.Result == job.ResultRunning:
		fmt.Println("too late: attempt", change.Attempt, "runs at", change.Owner)
	default:
		fmt.Println(change.Result) // done, finished or unknown
	}
}

func ExampleClient_ScheduleMany() {
	var c *client.Client // of client.New
	var items []client.Item
	for i := range 10_000 {
		items = append(items, client.Item{
			Job: client.Job{ID: fmt.Sprint("reminder-", i), Target: "mail.remind"},
			In:  24 * time.Hour,
		})
	}
	results, err := c.ScheduleMany(context.Background(), items)
	if err == nil {
		return // all are scheduled
	}
	for i, r := range results {
		var refused *client.Error
		switch {
		case r.Err == nil:
		case errors.As(r.Err, &refused):
			fmt.Println(items[i].ID, "is refused:", refused.Description)
		default:
			fmt.Println(items[i].ID, "may be scheduled or not; scheduling it again is harmless:", r.Err)
		}
	}
}

func ExampleClient_List() {
	var c *client.Client // of client.New
	for j, err := range c.List(context.Background(), client.Filter{State: job.Dead, Target: "orders.>"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(j.ID, j.Target, j.Reason)
	}
}

// A program that may publish to delay.api.*.orders.x alone manages those jobs.
func ExampleClient_ForTarget() {
	var c *client.Client // of client.New
	orders, err := c.ForTarget("orders.x")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := orders.Get(context.Background(), "billing-3"); errors.Is(err, client.ErrUnknown) {
		fmt.Println("there is no such job of orders.x")
	}
}
