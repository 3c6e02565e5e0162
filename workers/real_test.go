package workers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/delaybridge/delaybridge/workers"
)

// realBridge runs a bridge over store until the test ends or it is stopped.
func realBridge(t *testing.T, srv *testnats.Server, store job.Store) (stop func()) {
	t.Helper()
	opts := append(adapter.ConnOptions(), nats.ReconnectWait(5*time.Millisecond))
	conns := adapter.Conns{Intake: connect(t, srv, opts...), Dispatch: connect(t, srv, opts...)}
	b, err := adapter.New(adapter.Config{ID: "b1", Logger: slog.New(slog.DiscardHandler), Drain: 10 * time.Millisecond}, conns, store, subjects.StoreLocal)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	receive(t, b.Ready())
	stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(t, ended); err != nil {
			t.Errorf("bridge: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func schedule(t *testing.T, nc *nats.Conn, subject, payload string, headers ...option) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(payload)
	for _, h := range headers {
		h(m)
	}
	reply, err := nc.RequestMsg(m, patient)
	if err != nil {
		t.Fatal(err)
	}
	var ack struct{ Error *struct{ Description string } }
	if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Error != nil {
		t.Fatalf("not scheduled: %s", reply.Data)
	}
}

// begin runs a worker beside a real bridge, or none.
func begin(t *testing.T, nc *nats.Conn, cfg workers.Config, h workers.Handler, how ...func(*workers.Worker)) *running {
	t.Helper()
	w, err := workers.New(nc, cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range how {
		f(w)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- w.Run(ctx) }()
	t.Cleanup(func() { r.end(t) })
	return r
}

func TestRealBridgeRunsEachJobOnce(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	realBridge(t, srv, memdelay.New(memdelay.Options{}))
	nc := connect(t, srv)
	var mu sync.Mutex
	ran := map[string]int{}
	handler := func(_ context.Context, j *workers.Job) error {
		mu.Lock()
		defer mu.Unlock()
		ran[string(j.Payload)]++
		return nil
	}
	cfg := config()
	cfg.OnLost = func(j *workers.Job, err error) { t.Errorf("lost %s: %v", j.ID, err) }
	var all []*running
	for _, c := range []int{1, 10, 100} {
		cfg.Concurrency = c
		all = append(all, begin(t, connect(t, srv), cfg, handler))
	}
	const jobs = 500
	for i := range jobs {
		schedule(t, nc, "delay.in.10ms.t.x", fmt.Sprint(i))
	}
	until(t, "all jobs ran and are confirmed", func() bool {
		n := uint64(0)
		for _, w := range all {
			s := w.Stats()
			n += s.Done - uint64(s.Unconfirmed)
		}
		return n >= jobs
	})
	mu.Lock()
	defer mu.Unlock()
	for i := range jobs {
		if n := ran[fmt.Sprint(i)]; n != 1 {
			t.Errorf("job %d ran %d times", i, n)
		}
	}
	for _, w := range all {
		if w.Stats().Done == 0 {
			t.Errorf("worker %s ran nothing", w.Name())
		}
	}
}

func TestRealBridgeGivesAJobToAnother(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	realBridge(t, srv, memdelay.New(memdelay.Options{}))
	nc, dies := connect(t, srv), connect(t, srv)
	first, second := newHold(), newHold()
	victim := begin(t, dies, config(), first.handle)
	schedule(t, nc, "delay.in.0s.t.x", "p", header("Delay-Backoff", "10ms"))
	receive(t, first.began)
	other := begin(t, connect(t, srv), config(), second.handle)
	// A ping that reaches nobody is believed of a worker that has answered one.
	pings, err := nc.SubscribeSync("delay.ping." + victim.Name())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := pings.NextMsg(patient); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(pings.Unsubscribe(), nc.Flush()); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	dies.Close()
	if err := receive(t, victim.done); err == nil {
		t.Error("Run without a connection returned nil")
	}
	victim.once.Do(func() {})
	if j := receive(t, second.began); j.Attempt != 2 {
		t.Errorf("attempt %d, want 2", j.Attempt)
	}
	if d := time.Since(died); d > 5*time.Second {
		t.Errorf("the job was with the other worker after %v", d)
	}
	second.let <- nil
	until(t, "confirmed", func() bool { s := other.Stats(); return s.Done == 1 && s.Unconfirmed == 0 })
}

// A worker that is busy keeps no jobs from others that are idle, also when its
// queue group deals them to it.
func TestRealBridgeLeavesNoJobBehindALongOne(t *testing.T) {
	t.Parallel()
	srv := restricted(t, "delay.job.>")
	realBridge(t, srv, memdelay.New(memdelay.Options{}))
	nc := connect(t, srv)
	h := newHold()
	cfg := config()
	cfg.Concurrency = 1
	begin(t, connect(t, srv, nats.UserInfo("w", "w")), cfg, h.handle, hurried)
	const jobs = 20
	schedule(t, nc, "delay.in.0s.t.x", "long")
	receive(t, h.began)
	idle := begin(t, connect(t, srv, nats.UserInfo("w", "w")), cfg, done, hurried)
	for i := range jobs - 1 {
		schedule(t, nc, "delay.in.0s.t.x", fmt.Sprint(i))
	}
	until(t, "the idle worker has run all others", func() bool { return idle.Stats().Done == jobs-1 })
	h.let <- nil
}

func TestRealBridgeTakesOutcomesAfterARestart(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	store := memdelay.New(memdelay.Options{})
	stop := realBridge(t, srv, store)
	h := newHold()
	cfg := config()
	cfg.OnLost = func(j *workers.Job, err error) { t.Errorf("lost %s: %v", j.ID, err) }
	w := begin(t, connect(t, srv), cfg, h.handle)
	schedule(t, connect(t, srv), "delay.in.0s.t.x", "p")
	receive(t, h.began)
	stop()
	h.let <- nil
	until(t, "the outcome waits", func() bool { return w.Stats().Unconfirmed == 1 })
	realBridge(t, srv, store)
	until(t, "confirmed", func() bool { return w.Stats().Unconfirmed == 0 })
	if err := w.end(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := w.Stats(); s.Done != 1 || s.Lost != 0 {
		t.Errorf("stats %+v", s)
	}
}
