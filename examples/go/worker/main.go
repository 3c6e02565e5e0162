// Worker runs jobs that it owns: should it be killed, its jobs are at another
// worker within a second.
//
//	go run ./examples/go/worker orders.remind
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/workers"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: worker TARGET")
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	w, err := workers.New(nc, workers.Config{Subjects: os.Args[1:], Concurrency: 10}, work)
	if err != nil {
		log.Fatal(err)
	}
	// Once it is told to stop it finishes what it runs, and gives back the rest.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// work may see a job twice, as after a crash, so it must be safe to repeat.
func work(_ context.Context, j *workers.Job) error {
	fmt.Printf("worked on %s, attempt %d, %.3f s after it was due\n", j.Payload, j.Attempt, time.Since(j.Due).Seconds())
	return nil
}
