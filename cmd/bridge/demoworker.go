package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/workers"
)

const (
	demoTarget  = "demo.work"
	demoResults = "demo.results"
	demoGroup   = "workers"
)

// demoEvent is a line that a worker of the demo prints, and the result of a job.
type demoEvent struct {
	Event   string    `json:"event"` // start, done
	Worker  string    `json:"worker"`
	ID      string    `json:"id"`
	Attempt int       `json:"attempt"`
	Lease   float64   `json:"lease"` // seconds
	At      time.Time `json:"at"`
}

// runDemoWorker is a worker with the library, until its stdin ends.
func runDemoWorker(ctx context.Context, c *command, std stdio, args []string) error {
	fs := newFlags(c)
	url := fs.String("nats-url", "", "NATS `URL`")
	name := fs.String("name", "", "`name` of the worker")
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return err
	}
	nc, err := nats.Connect(*url)
	if err != nil {
		return err
	}
	defer nc.Close()
	d := &demoWorker{name: *name, out: json.NewEncoder(std.out)}
	w, err := workers.New(nc, workers.Config{
		Name: *name, Queue: demoGroup, Subjects: []string{demoTarget}, Concurrency: 4, Logger: newLogger(std.err, slog.LevelError, "text"),
	}, d.handle)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { untilStdinEnds(std); stop() }()
	return w.Run(ctx)
}

type demoWorker struct {
	name string
	mu   sync.Mutex
	out  *json.Encoder
}

// handle works for as long as the payload says.
func (d *demoWorker) handle(ctx context.Context, j *workers.Job) error {
	e := demoEvent{Event: "start", Worker: d.name, ID: j.ID, Attempt: int(j.Attempt), Lease: j.AckWait.Seconds(), At: time.Now()}
	d.print(e)
	work, err := time.ParseDuration(string(j.Payload))
	if err != nil {
		return workers.Discard(err.Error())
	}
	select {
	case <-time.After(work):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	e.Event = "done"
	result, err := json.Marshal(e)
	j.SetResult(result)
	return err
}

func (d *demoWorker) print(e demoEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.out.Encode(e) // the parent is gone: stdin ends, too
}
