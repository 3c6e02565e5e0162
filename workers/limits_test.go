package workers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

// A heartbeat must fit the server's max_payload.
func TestHeartbeatsFitTheServer(t *testing.T) {
	srv := testnats.Start(t, testnats.MaxPayload(16<<10))
	b := newBridge(t, srv)
	h := newHold()
	cfg := config()
	cfg.Concurrency = 64
	w := run(t, b, connect(t, srv), cfg, h.handle)
	long := func(m *nats.Msg) {
		token := m.Header.Get("Delay-Token") + strings.Repeat("x", 400)
		m.Header.Set("Delay-Token", token)
		m.Reply = "delay.ack.b1." + token
	}
	for range 60 {
		b.direct(w, "p", long)
	}
	back := 0
	b.until("some are given back", func() bool {
		back = 0
		for _, m := range b.messages {
			if m.body == given {
				back++
			}
		}
		return back > 20
	})
	b.beatThat("lists the rest", func(h beat) bool { return len(h.Running) == 60-back && h.Free == 4+back })
}

// What waits in the worker is bounded; the rest waits in the client.
func TestBacklogIsBounded(t *testing.T) {
	const all = 8192 + 100
	cfg := config()
	cfg.Concurrency = 1
	let := make(chan struct{})
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { <-let; return nil })
	for i := range all {
		if err := b.nc.Publish("t.x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the worker is full", func() bool { return w.Stats().Waiting == 8192 })
	// Whatever else has arrived would be in by now: a later message is.
	token := b.direct(w, "p")
	b.beatThat("lists the job", func(h beat) bool { return sameSet(h.Running, []string{token}) })
	if s := w.Stats(); s.Waiting != 8193 || s.Running != 1 {
		t.Errorf("stats %+v", s)
	}
	close(let)
	until(t, "all are done", func() bool { return w.Stats().Done == all+1 })
}

// Stopping must not wait for room in the backlog.
func TestStopWithAFullBacklog(t *testing.T) {
	cfg := config()
	cfg.Concurrency = 1
	h := newHold()
	b, w := rig(t, cfg, h.handle)
	for range 8192 + 100 {
		b.send("t.x", "p")
	}
	until(t, "the worker is full", func() bool { return w.Stats().Waiting >= 8190 })
	began := time.Now()
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if d := time.Since(began); d > patient/2 {
		t.Errorf("stopped after %v", d)
	}
	b.until("all are given back", func() bool {
		n := 0
		for _, m := range b.messages {
			if m.body == given {
				n++
			}
		}
		return n >= 8192+100-2 // one ran, one was the worker's
	})
}
