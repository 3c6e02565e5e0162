// Webhook posts every job's payload to a URL, and shows how a job is retried:
// by its backoff when the other side fails, when that says so with Retry-After,
// and never again when it refuses.
//
//	go run ./examples/go/webhook hooks.billing https://billing.example/hook
package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/workers"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: webhook TARGET URL")
	}
	target, url := os.Args[1], os.Args[2]
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	w, err := workers.New(nc, workers.Config{
		Subjects:    []string{target},
		Concurrency: 10,
		Timeout:     10 * time.Second,
		Middleware:  []workers.Middleware{workers.Logging(nil)},
	}, func(ctx context.Context, j *workers.Job) error { return post(ctx, url, j) })
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func post(ctx context.Context, url string, j *workers.Job) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(j.Payload))
	if err != nil {
		return workers.Discard(err.Error())
	}
	req.Header.Set("Idempotency-Key", j.ID) // the same for all attempts
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	return outcome(resp)
}

// outcome decides what becomes of the job.
func outcome(resp *http.Response) error {
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	switch {
	case resp.StatusCode < 300:
		return nil
	case after > 0:
		return workers.RetryAfter(time.Duration(after)*time.Second, fmt.Errorf("answered %s", resp.Status))
	case resp.StatusCode >= 500:
		return fmt.Errorf("answered %s", resp.Status) // again, by the job's Delay-Backoff
	default:
		return workers.Discard("answered " + resp.Status) // to the dead jobs, at once
	}
}
