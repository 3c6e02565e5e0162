package workers_test

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/workers"
)

// A worker that runs until it gets SIGTERM, and then finishes what it runs.
func Example() {
	nc, err := nats.Connect(nats.DefaultURL, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	w, err := workers.New(nc, workers.Config{Queue: "mail", Subjects: []string{"mail.>"}, Concurrency: 10},
		func(ctx context.Context, j *workers.Job) error {
			log.Printf("job %s for %s, attempt %d: %s", j.ID, j.Target, j.Attempt, j.Payload)
			return nil
		})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

var (
	errBusy    = errors.New("busy")
	errUnknown = errors.New("no such customer")
)

func charge(context.Context, []byte) error { return nil }

// What a handler returns decides what becomes of the job.
func ExampleHandler() {
	_ = func(ctx context.Context, j *workers.Job) error {
		err := charge(ctx, j.Payload)
		switch {
		case errors.Is(err, errBusy):
			return workers.Snooze(time.Minute) // the attempt is not charged
		case errors.Is(err, errUnknown):
			return workers.Discard(err.Error()) // to the dead-letter set, at once
		case err != nil && j.Attempt > 3:
			return workers.RetryAfter(time.Hour, err)
		}
		return err // done, or again by the job's backoff
	}
}

// The result goes to the subject that the producer named as Delay-Reply-To.
func ExampleJob_SetResult() {
	_ = func(ctx context.Context, j *workers.Job) error {
		j.SetResult([]byte(`{"paid":true}`))
		return nil
	}
}

// Middleware wraps every handler; the first one is outermost.
func ExampleMiddleware() {
	slow := func(next workers.Handler) workers.Handler {
		return func(ctx context.Context, j *workers.Job) error {
			began := time.Now()
			err := next(ctx, j)
			if d := time.Since(began); d > time.Second {
				slog.Warn("slow job", "target", j.Target, "took", d)
			}
			return err
		}
	}
	_ = workers.Config{
		Subjects:   []string{"mail.>"},
		Middleware: []workers.Middleware{workers.Tracing(nil), workers.Logging(nil), slow},
	}
}
