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
	b.until("what does not fit is given back, the rest listed", func() bool {
		back := 0
		for _, m := range b.messages {
			if m.body == given {
				back++
			}
		}
		last := b.beats[len(b.beats)-1]
		return back > 20 && len(last.Running) == 60-back && last.Free == 4+back
	})
}

// An outcome must fit as well: rather without its trace context than not at all.
func TestOutcomesFitTheServer(t *testing.T) {
	srv := testnats.Start(t, testnats.MaxPayload(16<<10))
	b := newBridge(t, srv)
	result := make([]byte, 15<<10)
	w := run(t, b, connect(t, srv), config(), func(_ context.Context, j *workers.Job) error {
		j.SetResult(result)
		return nil
	})
	m := b.settled(b.direct(w, "p", header("baggage", "a="+strings.Repeat("x", 4000))), 1)
	if len(m.body) != len("+ACK ")+len(result) || len(m.header) > 0 {
		t.Errorf("sent %d bytes with headers %v", len(m.body), m.header)
	}
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
}

// What waits in the worker is bounded; the rest waits in the client.
func TestBacklogIsBounded(t *testing.T) {
	const all = 8192 + 100
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 1, time.Minute // no heartbeat makes room
	let := make(chan struct{})
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { <-let; return nil })
	for i := range all {
		if err := b.nc.Publish("t.x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the worker is full", func() bool { return w.Stats().Waiting == 8192 })
	// Whatever else has arrived would be in by now: a later message is.
	b.direct(w, "p")
	until(t, "the job is in", func() bool { s := w.Stats(); return s.Waiting == 8193 && s.Running == 1 })
	close(let)
	until(t, "all are done", func() bool { return w.Stats().Done == all+1 })
}

// Refused claims make room as well.
func TestBacklogOfOthersJobs(t *testing.T) {
	const all = 8192 + 100
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 64, time.Minute
	b, _ := rig(t, cfg, done, hoarding)
	b.answers(func(message) string { return silent })
	for range all {
		b.send("t.x", "p")
	}
	b.until("first claims", func() bool { return len(b.messages) == 64 })
	b.answers(func(message) string { return stale409 })
	b.until("all claims", func() bool {
		claimed := map[string]bool{}
		for _, m := range b.messages {
			claimed[m.token] = true
		}
		return len(claimed) == all
	})
}

// Stopping must not wait for room in the backlog.
func TestStopWithAFullBacklog(t *testing.T) {
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 1, time.Minute // no heartbeat makes room
	h := newHold()
	b, w := rig(t, cfg, h.handle, hoarding)
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
		return n >= 8192+100-1 // one ran
	})
}
