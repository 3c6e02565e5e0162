package workers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

func done(context.Context, *workers.Job) error { return nil }

const stale409 = `-ERR {"code":409,"err_code":20410,"description":"stale"}`

func TestUnansweredSettlementIsRepeated(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), done)
	n := 0
	b.answers(func(message) string {
		if n++; n == 1 {
			return silent
		}
		return ""
	})
	token := b.direct(w, "p")
	first, second := b.settled(token, 1), b.settled(token, 2)
	if d := second.at.Sub(first.at); d < 600*time.Millisecond || d > 5*time.Second {
		t.Errorf("repeated after %v, want 1 s", d)
	}
	if first.body != second.body {
		t.Errorf("%q repeated as %q", first.body, second.body)
	}
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
}

func TestSettlementReachesARestartedBridge(t *testing.T) {
	t.Parallel()
	h := newHold()
	b, w := rig(t, config(), h.handle)
	token := b.direct(w, "p")
	receive(t, h.began)
	b.down()
	h.let <- nil
	until(t, "the outcome waits", func() bool { return w.Stats().Unconfirmed == 1 && w.Stats().Running == 0 })
	b.up()
	back := time.Now()
	if m := b.settled(token, 1); m.body != "+ACK" || m.at.Sub(back) > 2*time.Second {
		t.Errorf("got %q %v after the restart", m.body, m.at.Sub(back))
	}
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
}

// When a bridge is there again, its answer to a heartbeat tells.
func TestHeardHeartbeatRepeatsAtOnce(t *testing.T) {
	srv := testnats.Start(t)
	b, nc, h := newBridge(t, srv), connect(t, srv), newHold()
	w := run(t, b, nc, config(), h.handle, unhurried)
	token := b.direct(w, "p")
	receive(t, h.began)
	b.down()
	before := nc.Stats().InMsgs
	h.let <- nil
	// One to a heartbeat from before, one to the outcome, and two to heartbeats
	// that nobody has heard.
	until(t, "four answers", func() bool { return nc.Stats().InMsgs >= before+4 })
	b.up()
	if m := b.settled(token, 1); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
}

func TestUnavailableStoreIsTriedAgain(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), done)
	n := 0
	b.answers(func(message) string {
		switch n++; n {
		case 1:
			return `-ERR {"code":503,"err_code":20503,"description":"the store is away"}`
		case 2:
			return `-ERR {"code":429,"err_code":20429,"description":"overloaded"}`
		}
		return ""
	})
	token := b.direct(w, "p")
	first, second, third := b.settled(token, 1), b.settled(token, 2), b.settled(token, 3)
	if a, c := second.at.Sub(first.at), third.at.Sub(second.at); a < 150*time.Millisecond || c < 350*time.Millisecond || a+c > 2500*time.Millisecond {
		t.Errorf("pauses %v, %v, want 250 ms rising", a, c)
	}
}

type lostJob struct {
	j   *workers.Job
	err error
}

func TestRefusedSettlementIsReported(t *testing.T) {
	for _, outcome := range []error{nil, workers.Snooze(0)} {
		lost := make(chan lostJob, 1)
		cfg := config()
		cfg.OnLost = func(j *workers.Job, err error) { lost <- lostJob{j, err} }
		b, w := rig(t, cfg, func(context.Context, *workers.Job) error { return outcome })
		b.answers(func(message) string { return stale409 })
		b.direct(w, "p")
		got := receive(t, lost)
		if got.j.ID != "job-p" || !errors.Is(got.err, workers.ErrLost) || !strings.Contains(got.err.Error(), "stale (409/20410)") {
			t.Errorf("lost %v: %v", got.j, got.err)
		}
		if s := w.Stats(); s.Lost != 1 || s.Unconfirmed != 0 {
			t.Errorf("stats %+v", s)
		}
	}
}

// A repeated -NAK is refused when the first one took effect.
func TestRepeatedNakMayBeRefused(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.OnLost = func(*workers.Job, error) { t.Error("reported lost") }
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { return workers.Snooze(0) }, hurried)
	n := 0
	b.answers(func(message) string {
		if n++; n == 1 {
			return silent
		}
		return stale409
	})
	b.settled(b.direct(w, "p"), 2)
	until(t, "dropped", func() bool { return w.Stats().Unconfirmed == 0 })
	if s := w.Stats(); s.Lost != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestStaleJobIsCancelled(t *testing.T) {
	lost := make(chan lostJob, 1)
	cause := make(chan error, 1)
	cfg := config()
	cfg.Concurrency = 1
	cfg.OnLost = func(j *workers.Job, err error) { lost <- lostJob{j, err} }
	b, w := rig(t, cfg, func(ctx context.Context, j *workers.Job) error {
		if string(j.Payload) == "p" {
			<-ctx.Done()
			cause <- context.Cause(ctx)
		}
		return nil
	})
	token := b.direct(w, "p")
	waiting := b.direct(w, "waits, and is lost as well")
	last := b.direct(w, "last")
	b.beatThat("all run", func(h beat) bool { return len(h.Running) == 3 })
	b.calls(func(beat) []string { return []string{token, waiting, "unknown"} })
	if err := receive(t, cause); err != workers.ErrLost {
		t.Errorf("cause %v", err)
	}
	for range 2 {
		if got := receive(t, lost); got.err != workers.ErrLost || got.j.Token() == last {
			t.Errorf("lost %v: %v", got.j, got.err)
		}
	}
	b.settled(last, 1)
	w.end(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.of(token)) > 0 || len(b.of(waiting)) > 0 {
		t.Errorf("outcomes of lost jobs were sent: %v", b.messages)
	}
	if s := w.Stats(); s.Lost != 2 || s.Done != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestPlainCompletionIsRepeatedInHeartbeats(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), done, hurried)
	b.answers(func(m message) string { return silent })
	token := b.direct(w, "p")
	sent := b.settled(token, 1)
	h := b.beatThat("completion in done", func(h beat) bool { return sameSet(h.Done, []string{token}) })
	if len(h.Running) > 0 || h.Free != 4 {
		t.Errorf("heartbeat %+v", h)
	}
	b.mu.Lock()
	absent := 0
	for _, h := range b.beats {
		if h.at.After(sent.at) && len(h.Done) == 0 {
			absent++
		}
	}
	b.mu.Unlock()
	if absent > 1 {
		t.Errorf("absent from %d heartbeats, two make a bridge give the job away", absent)
	}
	b.answers(nil)
	b.forget()
	b.settled(token, 2)
	b.beatThat("done is empty", func(h beat) bool { return len(h.Done) == 0 })
}

// What a heartbeat cannot complete stays in running.
func TestOtherOutcomesStayInRunning(t *testing.T) {
	t.Parallel()
	b, w := rig(t, config(), func(_ context.Context, j *workers.Job) error {
		if string(j.Payload) == "retry" {
			return errors.New("failed")
		}
		j.SetResult([]byte("r"))
		return nil
	}, hurried)
	b.answers(func(m message) string { return silent })
	tokens := []string{b.direct(w, "retry"), b.direct(w, "result")}
	for _, token := range tokens {
		b.settled(token, 1)
	}
	for range 3 {
		b.forget()
		if h := b.beatThat("any", func(beat) bool { return true }); !sameSet(h.Running, tokens) || len(h.Done) > 0 {
			t.Fatalf("heartbeat %+v", h)
		}
	}
	b.answers(nil)
}

func TestUnconfirmedOutcomesAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 4 + 1024
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 1, 200*time.Millisecond
	b, w := rig(t, cfg, done, hurried)
	b.answers(func(message) string { return silent })
	for i := range bound + 10 {
		b.direct(w, fmt.Sprint(i))
	}
	until(t, "handlers wait", func() bool { s := w.Stats(); return s.Unconfirmed == bound && s.Waiting == 10 })
	b.forget()
	if h := b.beatThat("all known", func(h beat) bool { return len(h.Running)+len(h.Done) == bound+10 }); h.Free != 0 {
		t.Errorf("free %d", h.Free)
	}
	b.answers(nil)
	until(t, "all are done", func() bool { s := w.Stats(); return s.Unconfirmed == 0 && s.Done == bound+10 })
}

// A heartbeat lists at most 4,096 deliveries; what is beyond goes back.
func TestNoMoreThanAHeartbeatLists(t *testing.T) {
	const limit = 4096
	h := newHold()
	cfg := config()
	cfg.Concurrency = 2
	b, w := rig(t, cfg, h.handle)
	tokens := make([]string, limit+3)
	for i := range tokens {
		tokens[i] = b.direct(w, fmt.Sprint(i))
	}
	for _, token := range tokens[limit:] {
		if m := b.settled(token, 1); m.body != `-NAK {"delay":0,"spare":true}` {
			t.Errorf("answered %q", m.body)
		}
	}
	got := b.beatThat("lists all that was kept", func(h beat) bool { return len(h.Running) >= limit })
	if len(got.Running) != limit || got.Free != 0 {
		t.Errorf("%d running, %d free", len(got.Running), got.Free)
	}
}

func TestReconnectRepeatsAtOnce(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	b.answers(func(message) string { return silent })
	connected := make(chan struct{}, 1)
	nc := connect(t, srv, nats.ReconnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	cfg := config()
	cfg.Heartbeat = time.Minute
	w := run(t, b, nc, cfg, done)
	token := b.direct(w, "p")
	b.settled(token, 1)
	b.settled(token, 2) // the next is due after 2 s
	b.answers(nil)
	b.forget()
	srv.Restart(t)
	receive(t, connected) // the program's handler still works
	back := time.Now()
	m := b.settled(token, 3)
	h := b.beatThat("after the reconnect", func(beat) bool { return true })
	for _, at := range []time.Time{m.at, h.at} {
		if d := at.Sub(back); d > 1500*time.Millisecond {
			t.Errorf("%v after the reconnect", d)
		}
	}
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
}
