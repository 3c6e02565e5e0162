package workers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

func TestDirectedJob(t *testing.T) {
	got := make(chan *workers.Job, 1)
	b, w := rig(t, config(), func(_ context.Context, j *workers.Job) error { got <- j; return nil })
	token := b.direct(w, "p", header("User", "kept"), header("Delay-Attempt", "3"))
	m := b.settled(token, 1)
	if m.body != "+ACK" || m.reply == "" {
		t.Errorf("settled with %q, reply %q; want +ACK and a reply subject", m.body, m.reply)
	}
	j := receive(t, got)
	due := time.Date(2026, 11, 30, 9, 30, 0, 1000, time.UTC)
	if j.ID != "job-p" || j.Target != "t.x" || j.Attempt != 3 || j.AckWait != 30*time.Second || !j.Due.Equal(due) ||
		string(j.Payload) != "p" || j.Header.Get("User") != "kept" || j.Token() != token {
		t.Errorf("job %+v", j)
	}
	until(t, "the settlement is confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
	if s, want := w.Stats(), (workers.Stats{Done: 1}); s != want {
		t.Errorf("stats %+v, want %+v", s, want)
	}
}

// until waits for what no message tells.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patient)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatalf("not seen: %s", what)
		}
	}
}

func TestOutcomes(t *testing.T) {
	failed := func(text string) string { return fmt.Sprintf(`-NAK {"reason":%q}`, text) }
	for _, tt := range []struct {
		name string
		do   func(j *workers.Job) error
		body string
	}{
		{"done", func(*workers.Job) error { return nil }, "+ACK"},
		{"result", func(j *workers.Job) error { j.SetResult([]byte("r s")); return nil }, "+ACK r s"},
		{"empty result", func(j *workers.Job) error { j.SetResult([]byte{}); return nil }, "+ACK "},
		{"result of a failure", func(j *workers.Job) error { j.SetResult([]byte("r")); return io.EOF }, failed("EOF")},
		{"error", func(*workers.Job) error { return errors.New("a\r\nb: c") }, failed("a  b: c")},
		{"long error", func(*workers.Job) error { return errors.New(strings.Repeat("x", 1000)) }, failed(strings.Repeat("x", 240))},
		{"own context", func(*workers.Job) error { return context.Canceled }, failed("context canceled")},
		{"retry", func(*workers.Job) error { return workers.RetryAfter(time.Second, io.EOF) }, `-NAK {"delay":1000000000,"reason":"EOF"}`},
		{"retry in the past", func(*workers.Job) error { return workers.RetryAfter(-1, nil) }, `-NAK {"delay":0,"reason":"workers: try again later"}`},
		{"wrapped retry", func(*workers.Job) error { return fmt.Errorf("x: %w", workers.RetryAfter(2, io.EOF)) }, `-NAK {"delay":2,"reason":"x: EOF"}`},
		{"discard", func(*workers.Job) error { return workers.Discard("no such\nuser") }, "+TERM no such user"},
		{"discard without a reason", func(*workers.Job) error { return workers.Discard("") }, "+TERM"},
		{"wrapped discard", func(*workers.Job) error { return fmt.Errorf("x: %w", workers.Discard("r")) }, "+TERM r"},
		{"snooze", func(*workers.Job) error { return workers.Snooze(time.Second) }, `-NAK {"delay":1000000000,"spare":true}`},
		{"panic", func(*workers.Job) error { panic("boom") }, failed("panic: boom")},
		{"too large a result", func(j *workers.Job) error { j.SetResult(make([]byte, 1<<20)); return nil },
			failed("the result is larger than the server takes")},
		{"the goroutine ends", func(*workers.Job) error { runtime.Goexit(); return nil }, failed("panic: the handler called runtime.Goexit")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config()
			cfg.Concurrency = 1
			b, w := rig(t, cfg, func(_ context.Context, j *workers.Job) error {
				if string(j.Payload) == "after" {
					return nil
				}
				return tt.do(j)
			})
			m := b.settled(b.direct(w, "p"), 1)
			if m.body != tt.body {
				t.Errorf("sent %.100q, want %q", m.body, tt.body)
			}
			// The worker, which has one handler, goes on.
			if m := b.settled(b.direct(w, "after"), 1); m.body != "+ACK" {
				t.Errorf("next job settled with %q", m.body)
			}
		})
	}
}

func TestErrorsUnwrap(t *testing.T) {
	var retry *workers.RetryError
	err := fmt.Errorf("x: %w", workers.RetryAfter(time.Second, io.EOF))
	if !errors.Is(err, io.EOF) || !errors.As(err, &retry) || retry.Delay != time.Second {
		t.Errorf("%v hides what it wraps", err)
	}
	if err := error(&workers.PanicError{Value: io.EOF}); !errors.Is(err, io.EOF) {
		t.Errorf("%v hides the error that was the panic's value", err)
	}
}

func TestQueueDeliveryIsClaimedFirst(t *testing.T) {
	h := newHold()
	b, w := rig(t, config(), h.handle)
	token := b.send("t.y", "p")
	if m := b.settled(token, 1); m.body != `+CLAIM {"worker":"`+w.Name()+`"}` {
		t.Fatalf("sent %q, want a claim", m.body)
	}
	if j := receive(t, h.began); j.Target != "t.y" {
		t.Errorf("target %q, want the subject", j.Target)
	}
	b.beatThat("lists the job", func(h beat) bool { return sameSet(h.Running, []string{token}) && h.Free == 3 })
	h.let <- nil
	if m := b.settled(token, 2); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
}

func TestRefusedClaimIsDropped(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.OnLost = func(*workers.Job, error) { t.Error("a job that never was the worker's is reported lost") }
	b, _ := rig(t, cfg, h.handle)
	b.answers(func(m message) string {
		if m.token == "tok-1" {
			return `-ERR {"code":409,"err_code":20409,"description":"another worker has it"}`
		}
		return "+OK {}"
	})
	b.send("t.x", "refused")
	b.send("t.x", "taken")
	if j := receive(t, h.began); string(j.Payload) != "taken" {
		t.Errorf("ran %q", j.Payload)
	}
	h.let <- nil
}

func TestClaimIsRepeatedUntilAnswered(t *testing.T) {
	t.Parallel()
	h := newHold()
	b, _ := rig(t, config(), h.handle)
	n := 0
	b.answers(func(m message) string {
		if n++; n == 1 {
			return `-ERR {"code":503,"err_code":20503,"description":"the store is away"}`
		}
		return "+OK {}"
	})
	token := b.send("t.x", "p")
	receive(t, h.began)
	first, second := b.settled(token, 1), b.settled(token, 2)
	if d := second.at.Sub(first.at); d < 100*time.Millisecond {
		t.Errorf("repeated after %v already", d)
	}
	b.answers(nil)
	h.let <- nil
	b.settled(token, 3)
}

func TestPlainMessage(t *testing.T) {
	got := make(chan *workers.Job, 1)
	b, w := rig(t, config(), func(_ context.Context, j *workers.Job) error { got <- j; return io.EOF })
	answers := make(chan *nats.Msg, 1)
	inbox, err := b.nc.ChanSubscribe("answers", answers)
	if err != nil {
		t.Fatal(err)
	}
	b.nc.PublishMsg(&nats.Msg{Subject: "t.plain", Reply: "answers", Data: []byte("p")})
	if j := receive(t, got); j.Attempt != 0 || j.ID != "" || j.Target != "t.plain" || string(j.Payload) != "p" || j.Token() != "" {
		t.Errorf("job %+v", j)
	}
	until(t, "the handler returned", func() bool { return w.Stats().Retried == 1 })
	w.end(t)
	b.flush()
	if n, _, _ := inbox.Pending(); n > 0 || len(answers) > 0 {
		t.Errorf("answered %v", <-answers)
	}
}

// A message whose headers look like a delivery's must not make the worker
// publish wherever its sender likes.
func TestForeignReplySubjectIsNotSettled(t *testing.T) {
	for _, tt := range []struct{ reply, token string }{
		{"delay.in.1s.t.tok-1", "tok-1"},
		{"delay.ack.b1.tok-2", "tok-1"},
		{"delay.ack.b1.a\"b", "a\"b"},
		{"other.ack.b1.tok-1", "tok-1"},
	} {
		t.Run(tt.reply, func(t *testing.T) {
			h := newHold()
			b, w := rig(t, config(), h.handle)
			sub, err := b.nc.SubscribeSync(tt.reply)
			if err != nil {
				t.Fatal(err)
			}
			b.flush()
			b.nc.PublishMsg(&nats.Msg{Subject: "t.x", Reply: tt.reply, Header: nats.Header{"Delay-Token": {tt.token}}})
			receive(t, h.began)
			h.let <- nil
			w.end(t)
			b.flush()
			if n, _, _ := sub.Pending(); n > 0 {
				t.Error("the worker published there")
			}
		})
	}
}

func TestConcurrency(t *testing.T) {
	h := newHold()
	var now, most atomic.Int32
	cfg := config()
	cfg.Concurrency = 2
	b, w := rig(t, cfg, func(ctx context.Context, j *workers.Job) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		return h.handle(ctx, j)
	})
	var tokens []string
	for i := range 6 {
		tokens = append(tokens, b.direct(w, fmt.Sprint(i)))
	}
	got := b.beatThat("lists all", func(h beat) bool { return sameSet(h.Running, tokens) })
	if got.Free != 0 || got.Capacity != 2 || !got.Directed || got.Queue != "q" || !reflect.DeepEqual(got.Subjects, []string{"t.>"}) {
		t.Errorf("heartbeat %+v", got)
	}
	for range tokens {
		receive(t, h.began)
		h.let <- nil
	}
	for _, token := range tokens {
		b.settled(token, 1)
	}
	if most.Load() != 2 {
		t.Errorf("%d handlers at once, want 2", most.Load())
	}
	b.forget()
	b.beatThat("all free", func(h beat) bool { return h.Free == 2 && len(h.Running) == 0 })
}

func TestJobsWaitInOrder(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Concurrency = 1
	b, w := rig(t, cfg, h.handle)
	for i := range 200 { // more than the queue keeps without moving
		b.direct(w, fmt.Sprint(i))
	}
	for i := range 200 {
		if j := receive(t, h.began); string(j.Payload) != fmt.Sprint(i) {
			t.Fatalf("job %s is number %d", j.Payload, i)
		}
		h.let <- nil
	}
}

func TestSameDeliveryRunsOnce(t *testing.T) {
	h := newHold()
	b, w := rig(t, config(), h.handle)
	token := b.direct(w, "p")
	receive(t, h.began)
	again := func(m *nats.Msg) { m.Header.Set("Delay-Token", token); m.Reply = "delay.ack.b1." + token }
	b.direct(w, "p", again)
	b.send("t.x", "p", again)
	other := b.direct(w, "other")
	if j := receive(t, h.began); string(j.Payload) != "other" {
		t.Errorf("ran %q again", j.Payload)
	}
	h.let <- nil
	h.let <- nil
	b.settled(token, 1)
	b.settled(other, 1)
}

func TestTimeout(t *testing.T) {
	cfg := config()
	cfg.Timeout = 20 * time.Millisecond
	b, w := rig(t, cfg, func(ctx context.Context, _ *workers.Job) error { <-ctx.Done(); return ctx.Err() })
	m := b.settled(b.direct(w, "p"), 1)
	if want := fmt.Sprintf(`-NAK {"reason":%q}`, context.DeadlineExceeded); m.body != want {
		t.Errorf("settled with %q, want %q", m.body, want)
	}
}

func TestConnectionClosed(t *testing.T) {
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	nc := connect(t, srv)
	h := newHold()
	w := run(t, b, nc, config(), h.handle)
	b.direct(w, "p")
	receive(t, h.began)
	nc.Close()
	if err := receive(t, w.done); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run: %v", err)
	}
	w.once.Do(func() {})
	if _, err := workers.New(nc, config(), h.handle); err != nil {
		t.Fatal(err)
	}
	again, _ := workers.New(nc, config(), h.handle)
	if err := again.Run(t.Context()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run on a closed connection: %v", err)
	}
}

func TestRunOnce(t *testing.T) {
	_, w := rig(t, config(), newHold().handle)
	if err := w.Run(t.Context()); err == nil {
		t.Error("a second Run is not refused")
	}
}
