package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	demoTarget = "demo.work"
	demoGroup  = "workers"
	// ackTimeout bounds the wait for the bridge to confirm a settlement.
	ackTimeout = 5 * time.Second
)

// demoEvent is a line that a worker of the demo prints.
type demoEvent struct {
	Event   string    `json:"event"` // listening, start, done
	ID      string    `json:"id,omitempty"`
	Attempt string    `json:"attempt,omitempty"`
	Due     time.Time `json:"due,omitzero"`
	At      time.Time `json:"at"`
}

// runDemoWorker is a worker as any NATS client could write it: it subscribes
// in a queue group, works for as long as the payload says, and acknowledges.
func runDemoWorker(_ context.Context, c *command, std stdio, args []string) error {
	fs := newFlags(c)
	url := fs.String("nats-url", "", "NATS `URL`")
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return err
	}
	nc, err := nats.Connect(*url)
	if err != nil {
		return err
	}
	defer nc.Close()
	w := demoWorker{nc: nc, out: json.NewEncoder(std.out)}
	if _, err := nc.QueueSubscribe(demoTarget, demoGroup, w.handle); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	w.print(demoEvent{Event: "listening"})
	untilStdinEnds(std)
	return nil
}

type demoWorker struct {
	nc  *nats.Conn
	mu  sync.Mutex
	out *json.Encoder
}

func (w *demoWorker) print(e demoEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.At.IsZero() {
		e.At = time.Now()
	}
	_ = w.out.Encode(e) // the parent is gone: stdin ends, too
}

// handle starts each job at once, so that a slow one holds up no other.
func (w *demoWorker) handle(m *nats.Msg) {
	e := demoEvent{Event: "start", At: time.Now(), ID: m.Header.Get("Nats-Msg-Id"), Attempt: m.Header.Get("Delay-Attempt")}
	e.Due, _ = time.Parse(time.RFC3339Nano, m.Header.Get("Delay-Due"))
	w.print(e)
	work, err := time.ParseDuration(string(m.Data))
	if err != nil {
		_ = m.Respond([]byte(fmt.Sprintf("+TERM %v", err))) // unanswered, the lease ends
		return
	}
	time.AfterFunc(work, func() {
		// A request instead of m.Respond, so that the job counts as done only
		// when the bridge has stored that it is.
		reply, err := w.nc.Request(m.Reply, nil, ackTimeout)
		if err == nil && len(reply.Data) == 0 {
			w.print(demoEvent{Event: "done", ID: e.ID, Attempt: e.Attempt})
		}
	})
}
