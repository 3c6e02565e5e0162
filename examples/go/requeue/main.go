// Requeue gives dead jobs another chance: it lists those of a target whose
// reason contains a text, and makes them due now.
//
//	go run ./examples/go/requeue 'hooks.>' '404 Not Found'
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/job"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: requeue TARGET|PATTERN TEXT")
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
	if err := requeue(context.Background(), c, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func requeue(ctx context.Context, c *client.Client, target, text string) error {
	for j, err := range c.List(ctx, client.Filter{State: job.Dead, Target: target}) {
		if err != nil {
			return err
		}
		if !strings.Contains(j.Reason, text) {
			continue
		}
		change, err := c.Requeue(ctx, string(j.ID))
		if err != nil {
			return err
		}
		fmt.Printf("%s, dead after attempt %d (%s): %s\n", j.ID, j.Attempt, j.Reason, change.Result)
	}
	return nil
}
