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

// claimed returns which deliveries were claimed and which given back.
func (b *fakeBridge) claimed() (claimed, back map[string]bool) {
	claimed, back = map[string]bool{}, map[string]bool{}
	for _, m := range b.messages {
		if strings.HasPrefix(m.body, "+CLAIM") {
			claimed[m.token] = true
		} else if m.body == given {
			back[m.token] = true
		}
	}
	return claimed, back
}

// No more is claimed than handlers are free for; the rest goes back soon, and
// without a charge.
func TestOnlyWhatCanStartIsClaimed(t *testing.T) {
	for _, tt := range []struct{ name, ackWait string }{{"long lease", "1h"}, {"short lease", "600ms"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHold()
			cfg := config()
			cfg.Concurrency, cfg.Heartbeat = 2, time.Minute
			b, w := rig(t, cfg, h.handle)
			began := time.Now()
			var tokens []string
			for i := range 6 {
				tokens = append(tokens, b.send("t.x", fmt.Sprint(i), header("Delay-Ack-Wait", tt.ackWait)))
			}
			b.until("two claims, four given back", func() bool {
				claimed, back := b.claimed()
				return len(claimed) == 2 && len(back) == 4 && claimed[tokens[0]] && claimed[tokens[1]]
			})
			if d := time.Since(began); d > patient/2 {
				t.Errorf("given back after %v", d)
			}
			until(t, "nothing waits", func() bool { s := w.Stats(); return s.Running == 2 && s.Waiting == 0 })
		})
	}
}

// A handler that becomes free claims the next one, whatever becomes of the
// outcome.
func TestFreeHandlerClaimsTheNext(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Concurrency = 1
	b, w := rig(t, cfg, h.handle, unhurried, hoarding)
	first, second := b.send("t.x", "first"), b.send("t.x", "second")
	receive(t, h.began)
	b.answers(func(m message) string {
		if m.token == first {
			return silent
		}
		return "+OK {}"
	})
	h.let <- nil
	if j := receive(t, h.began); j.Token() != second {
		t.Errorf("ran %q", j.Payload)
	}
	b.answers(nil)
	w.Resend(first)
	h.let <- nil
}

// Bridges learn of a worker before it joins its queue group, where it would get
// jobs for which others have a free handler.
func TestBridgesKnowTheWorkerFirst(t *testing.T) {
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	b.down()
	beats := make(chan *nats.Msg, 1000)
	if _, err := b.nc.ChanSubscribe("delay.hb.*", beats); err != nil {
		t.Fatal(err)
	}
	b.flush()
	h := newHold()
	w := begin(t, connect(t, srv), config(), h.handle)
	first := receive(t, beats)
	if !strings.Contains(string(first.Data), `"directed":true`) {
		t.Errorf("heartbeat %s", first.Data)
	}
	if _, err := b.nc.Request("t.x", nil, patient); err != nats.ErrNoResponders {
		t.Errorf("the worker is in its queue group before it is known: %v", err)
	}
	b.direct(w, "p") // from a bridge that knows it already
	receive(t, h.began)
	h.let <- nil
	if err := first.Respond([]byte(`{"stale":[]}`)); err != nil {
		t.Fatal(err)
	}
	until(t, "it joins", w.Listens)
	b.up() // for its farewell
}

func TestWorkerJoinsWithoutABridge(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			t.Parallel()
			srv := testnats.Start(t)
			nc := connect(t, srv)
			if silent {
				if _, err := nc.Subscribe("delay.>", func(*nats.Msg) {}); err != nil {
					t.Fatal(err)
				}
			}
			w := begin(t, connect(t, srv), config(), done, hurried)
			until(t, "it joins", w.Listens)
		})
	}
}

func TestStopBeforeJoining(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv, nats.RetryOnFailedConnect(true))
	srv.Shutdown()
	until(t, "the connection is lost", func() bool { return !nc.IsConnected() })
	w := begin(t, nc, config(), done, hurried)
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A repeated claim whose answer comes just then must not be sent as an outcome:
// its answer would confirm one.
func TestClaimIsNotRepeatedOnceAnswered(t *testing.T) {
	h := newHold()
	b, w := rig(t, config(), h.handle)
	token := b.send("t.x", "p")
	receive(t, h.began)
	w.Resend(token)
	h.let <- nil
	if m := b.settled(token, 2); m.body != "+ACK" {
		t.Errorf("sent %q, reply %q, while the handler ran", m.body, m.reply)
	}
}

// Bridges have given up a delivery when there is a newer one.
func TestNewerDeliveryEndsTheOlder(t *testing.T) {
	attempt := func(id, n string) option {
		return func(m *nats.Msg) { m.Header["Delay-Job-Id"], m.Header["Delay-Attempt"] = []string{id}, []string{n} }
	}
	for _, how := range []string{"directed", "queue group"} {
		t.Run(how, func(t *testing.T) {
			lost := make(chan *workers.Job, 4)
			cfg := config()
			cfg.Heartbeat = time.Minute
			cfg.OnLost = func(j *workers.Job, err error) { lost <- j }
			h := newHold()
			b, w := rig(t, cfg, h.handle)
			send := func(id, n string) string {
				if how == "directed" {
					return b.direct(w, n, attempt(id, n))
				}
				return b.send("t.x", n, attempt(id, n))
			}
			other := send("other", "2")
			receive(t, h.began)
			older := send("same", "2")
			receive(t, h.began)
			newer := send("same", "3")
			receive(t, h.began)
			if j := receive(t, lost); j.Token() != older {
				t.Errorf("lost %q, attempt %d", j.ID, j.Attempt)
			}
			send("same", "2") // late, and refused by bridges
			receive(t, h.began)
			for range 3 {
				h.let <- nil
			}
			for _, token := range []string{other, newer} {
				b.until("outcome", func() bool { ms := b.of(token); return len(ms) > 0 && ms[len(ms)-1].body == "+ACK" })
			}
			w.end(t)
			if len(lost) > 0 || w.Stats().Lost != 1 {
				t.Errorf("lost %d more, stats %+v", len(lost), w.Stats())
			}
		})
	}
}

// Whoever may publish to a target must not end jobs with it.
func TestForgedDeliveryEndsNothing(t *testing.T) {
	h := newHold()
	b, w := rig(t, config(), h.handle)
	b.answers(func(m message) string {
		if m.token == "tok-3" {
			return stale409
		}
		return "+OK {}"
	})
	token := b.direct(w, "p")
	receive(t, h.began)
	forged := func(m *nats.Msg) { m.Header["Delay-Attempt"] = []string{"9"} }
	b.send("t.x", "p", forged, func(m *nats.Msg) { m.Reply = "" })
	receive(t, h.began)
	b.settled(b.send("t.x", "p", forged), 1)
	until(t, "the refusal is known", func() bool { return w.Stats().Waiting == 0 })
	h.let <- nil
	h.let <- nil
	if m := b.settled(token, 1); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
	if s := w.Stats(); s.Lost != 0 {
		t.Errorf("stats %+v", s)
	}
}

// What waited and was lost is forgotten, also while a handler does not heed its
// context.
func TestLostJobsDoNotWait(t *testing.T) {
	cfg := config()
	cfg.Concurrency = 1
	let := make(chan struct{})
	b, w := rig(t, cfg, func(context.Context, *workers.Job) error { <-let; return nil })
	defer close(let)
	tokens := []string{b.direct(w, "a"), b.direct(w, "b"), b.direct(w, "c")}
	b.beatThat("all", func(h beat) bool { return sameSet(h.Running, tokens) })
	b.calls(func(beat) []string { return tokens })
	until(t, "none waits", func() bool { s := w.Stats(); return s.Lost == 3 && s.Waiting == 0 })
}

// A pattern that begins with a wildcard matches what bridges, workers and NATS
// say to one another as well.
func TestOnlyTargetsAreJobs(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Subjects = []string{">"}
	b, _ := rig(t, cfg, h.handle)
	for _, subject := range []string{"delay.in.1s.t.x", "_INBOX.x.y", "_t.x"} {
		if err := b.nc.Publish(subject, []byte("p")); err != nil {
			t.Fatal(err)
		}
	}
	if j := receive(t, h.began); j.Target != "_t.x" {
		t.Errorf("ran a message to %s", j.Target)
	}
	h.let <- nil
}
