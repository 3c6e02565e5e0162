package workers_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

func TestPing(t *testing.T) {
	b, w := rig(t, config(), done)
	if _, err := b.nc.Request("delay.ping."+w.Name(), nil, patient); err != nil {
		t.Errorf("ping: %v", err)
	}
	w.end(t)
	if _, err := b.nc.Request("delay.ping."+w.Name(), nil, patient); err != nats.ErrNoResponders {
		t.Errorf("ping after the end: %v", err)
	}
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Heartbeat = 100 * time.Millisecond
	began := time.Now()
	b, w := rig(t, cfg, done)
	b.until("four heartbeats", func() bool { return len(b.beats) >= 4 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.beats[3].at.Sub(b.beats[0].at); d < 250*time.Millisecond || d > 3*time.Second {
		t.Errorf("three heartbeats of 100 ms in %v", d)
	}
	if d := b.beats[0].at.Sub(began); d > 5*time.Second {
		t.Errorf("the first one after %v", d)
	}
	h := b.beats[0]
	if h.Worker != w.Name() || subjects.CheckWorkerID(h.Worker) != nil || h.Running == nil || h.Done == nil {
		t.Errorf("heartbeat %+v", h)
	}
}

// Whoever starts a worker without a bridge, or with another prefix, is told.
func TestNoBridgeIsLogged(t *testing.T) {
	log := &lines{}
	cfg := config()
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	b, w := rig(t, cfg, done, hurried)
	b.down()
	nc := w.conn
	before := nc.Stats().InMsgs
	until(t, "heartbeats that nobody has heard", func() bool { return nc.Stats().InMsgs >= before+5 })
	b.up()
	b.forget()
	b.until("heartbeats", func() bool { return len(b.beats) >= 3 })
	text := log.String()
	if strings.Count(text, "no bridge is there") != 1 || strings.Count(text, "a bridge is there") != 1 {
		t.Errorf("logged:\n%s", text)
	}
}

func TestShortLeasesHastenHeartbeats(t *testing.T) {
	h := newHold()
	cfg := config()
	cfg.Heartbeat = time.Minute
	b, w := rig(t, cfg, h.handle)
	b.forget()
	token := b.direct(w, "p", header("Delay-Ack-Wait", "300ms"))
	b.until("heartbeats at a third of the lease", func() bool { return len(b.beats) >= 4 })
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, h := range b.beats {
		if !sameSet(h.Running, []string{token}) {
			t.Errorf("heartbeat %d: %+v", i, h)
		}
	}
}

func TestHeartbeatsSlowDownAgain(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Heartbeat = 600 * time.Millisecond
	b, w := rig(t, cfg, done)
	b.settled(b.direct(w, "p", header("Delay-Ack-Wait", "60ms")), 1)
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
	b.forget()
	// The first is still one of the frequent ones.
	b.until("heartbeats with nothing to renew", func() bool { return len(b.beats) >= 3 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.beats[2].at.Sub(b.beats[1].at); d < cfg.Heartbeat/2 {
		t.Errorf("heartbeat %v after the last one, with nothing to renew", d)
	}
}

func TestRefusedHeartbeatChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHold()
	b, w := rig(t, config(), h.handle)
	token := b.direct(w, "p")
	receive(t, h.began)
	b.down()
	for _, answer := range []string{`{"error":{"code":400,"err_code":20400,"description":"too many"}}`, `not JSON`, ``, `{"stale":null}`} {
		heard := make(chan struct{}, 1)
		sub, err := b.nc.Subscribe("delay.hb.*", func(m *nats.Msg) {
			m.Respond([]byte(answer))
			select {
			case heard <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		receive(t, heard)
		receive(t, heard)
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	b.up()
	h.let <- nil
	if m := b.settled(token, 1); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
}
