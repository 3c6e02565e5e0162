package workers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

const given = `-NAK {"delay":0,"spare":true}`

func TestDrain(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Concurrency, cfg.Drain = 1, patient
	b, w := rig(t, cfg, h.handle)
	runs := b.direct(w, "runs")
	receive(t, h.began)
	waits := b.direct(w, "waits")
	b.beatThat("both", func(h beat) bool { return sameSet(h.Running, []string{runs, waits}) })
	b.answers(func(m message) string {
		if strings.HasPrefix(m.body, "+CLAIM") {
			return silent
		}
		return ""
	})
	claiming, arrived := b.send("t.x", "claiming"), b.send("t.x", "arrived")
	until(t, "all have arrived", func() bool { return w.Stats().Waiting == 3 })

	w.stop()
	b.until("farewell", func() bool { return len(b.byes) > 0 })
	b.mu.Lock()
	if h := b.byes[0]; !sameSet(h.Running, []string{runs}) || h.Free != 0 || h.Directed {
		t.Errorf("farewell %+v", h)
	}
	b.beats = nil
	b.mu.Unlock()
	for _, token := range []string{claiming, arrived} {
		b.until("what bridges do not know of is given back", func() bool {
			ms := b.of(token)
			return len(ms) > 0 && ms[len(ms)-1].body == given
		})
	}
	// Heartbeats go on for what still runs.
	hb := b.beatThat("of a worker that stops", func(beat) bool { return true })
	if !sameSet(hb.Running, []string{runs}) || hb.Free != 0 || hb.Directed {
		t.Errorf("heartbeat %+v", hb)
	}
	if _, err := b.nc.Request("delay.job."+w.Name(), nil, patient); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("the worker still takes jobs: %v", err)
	}
	h.let <- nil
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := b.byes[len(b.byes)-1]; len(last.Running) > 0 || len(last.Done) > 0 || len(b.byes) != 2 {
		t.Errorf("farewells %+v", b.byes)
	}
	if ms := b.of(runs); len(ms) != 1 || ms[0].body != "+ACK" {
		t.Errorf("outcome %+v", ms)
	}
	if len(b.of(waits)) > 0 || len(h.began) > 0 {
		t.Error("what had not begun was run or settled")
	}
}

func TestFarewellIsRepeated(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), done, hurried)
	b.down()
	w.stop()
	heard := make(chan struct{}, 10)
	sub, err := b.nc.Subscribe("delay.bye.*", func(m *nats.Msg) { heard <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // twice, so one of them was repeated
		receive(t, heard)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestDrainEnds(t *testing.T) {
	h := newHold()
	b, w := rig(t, config(), h.handle) // returns the cause of its cancellation
	token := b.direct(w, "p")
	receive(t, h.began)
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if m := b.settled(token, 1); m.body != given {
		t.Errorf("settled with %q, want it given back without a charge", m.body)
	}
}

func TestHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Drain = -1
	began, let := make(chan struct{}), make(chan struct{})
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { close(began); <-let; return nil }, hurried)
	token := b.direct(w, "p")
	receive(t, began)
	if err := w.end(t); err == nil || !strings.Contains(err.Error(), "1 handlers have not returned") {
		t.Errorf("Run: %v", err)
	}
	close(let)
	until(t, "the handler is back", func() bool { return w.Stats().Running == 0 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := b.byes[len(b.byes)-1]; len(last.Running) > 0 {
		t.Errorf("last farewell %+v keeps the job from others", last)
	}
	if len(b.of(token)) > 0 {
		t.Errorf("settled: %v", b.of(token))
	}
}

func TestUnconfirmedAtTheEnd(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), done, hurried)
	b.answers(func(message) string { return silent })
	token := b.direct(w, "p")
	b.settled(token, 1)
	if err := w.end(t); err == nil || !strings.Contains(err.Error(), "1 outcomes") {
		t.Errorf("Run: %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bye := range b.byes {
		if !sameSet(bye.Done, []string{token}) {
			t.Errorf("farewell %+v does not say that the job is done", bye)
		}
	}
}

// Messages that no bridge can give to others are run while draining.
func TestPlainMessagesAreNotDropped(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Concurrency, cfg.Drain = 1, patient
	b, w := rig(t, cfg, h.handle)
	for i := range 3 {
		b.nc.Publish("t.x", fmt.Append(nil, i))
	}
	receive(t, h.began)
	until(t, "they wait", func() bool { return w.Stats().Waiting == 2 })
	w.stop()
	b.until("farewell", func() bool { return len(b.byes) > 0 })
	for range 3 {
		h.let <- nil
	}
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := w.Stats(); s.Done != 3 {
		t.Errorf("stats %+v", s)
	}
}

// Without a connection no outcome can be told, so nothing is waited for.
func TestConnectionClosedWhileDraining(t *testing.T) {
	srv := testnats.Start(t)
	b, nc, h := newBridge(t, srv), connect(t, srv), newHold()
	cfg := config()
	cfg.Drain = 2 * patient
	w := run(t, b, nc, cfg, h.handle)
	b.direct(w, "p")
	receive(t, h.began)
	w.stop()
	b.until("farewell", func() bool { return len(b.byes) > 0 })
	b.forget()
	b.until("it waits for its handler", func() bool { return len(b.beats) >= 3 })
	nc.Close()
	if err := w.end(t); err == nil || !strings.Contains(err.Error(), "1 outcomes") {
		t.Errorf("Run: %v", err)
	}
}

func TestStopWithoutAServer(t *testing.T) {
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	w := run(t, b, connect(t, srv), config(), done, hurried)
	srv.Shutdown()
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
}
