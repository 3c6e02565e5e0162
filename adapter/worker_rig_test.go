package adapter_test

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
)

// owner is a worker that owns its jobs, with a connection of its own, driven by
// the test: it says only what it is told to.
type owner struct {
	t        *testing.T
	nc       *nats.Conn
	name     string
	subjects []string
	capacity int
	directed bool
	jobs     chan *nats.Msg // on its own subject
	pings    atomic.Int64
	deaf     atomic.Bool // it does not answer pings
}

// owner connects a worker that has not said anything yet.
func (r *rig) owner(name string, capacity int, subjects ...string) *owner {
	r.t.Helper()
	w := &owner{t: r.t, nc: connect(r.t, r.srv.URL(), r.cfg.client...), name: name, subjects: subjects, capacity: capacity, directed: true, jobs: make(chan *nats.Msg, 10000)}
	w.hear("delay.job."+name, func(m *nats.Msg) { w.jobs <- m })
	w.hear("delay.ping."+name, func(m *nats.Msg) {
		w.pings.Add(1)
		if !w.deaf.Load() {
			_ = m.Respond(nil) // a connection that is gone shows elsewhere
		}
	})
	w.flush()
	return w
}

func (w *owner) hear(subject string, f nats.MsgHandler) {
	w.t.Helper()
	if _, err := w.nc.Subscribe(subject, f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *owner) flush() {
	w.t.Helper()
	if err := w.nc.FlushTimeout(patient); err != nil {
		w.t.Fatal(err)
	}
}

// token returns the token of a delivery.
func token(m *nats.Msg) string { return m.Header.Get("Delay-Token") }

func tokens(ms ...*nats.Msg) []string {
	out := []string{}
	for _, m := range ms {
		out = append(out, token(m))
	}
	return out
}

// body is what the worker says of itself.
func (w *owner) body(running, done []string) map[string]any {
	return map[string]any{
		"worker": w.name, "queue": "q", "subjects": w.subjects, "capacity": w.capacity,
		"free": max(0, w.capacity-len(running)), "directed": w.directed, "running": running, "done": done,
	}
}

// say sends a heartbeat or a farewell and returns what is stale.
func (w *owner) say(kind string, running, done []string) []string {
	w.t.Helper()
	data, err := json.Marshal(w.body(running, done))
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := w.nc.Request("delay."+kind+"."+w.name, data, patient)
	if err != nil {
		w.t.Fatalf("%s of %s: %v", kind, w.name, err)
	}
	var answer struct {
		Stale []string
		Error *pubError
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error != nil || answer.Stale == nil {
		w.t.Fatalf("%s of %s answered %q", kind, w.name, m.Data)
	}
	return answer.Stale
}

func (w *owner) beat(running ...*nats.Msg) []string {
	w.t.Helper()
	return w.say("hb", tokens(running...), nil)
}

// beating has w send a heartbeat, listing what it runs, every 20 ms until the
// test or the returned function ends it.
func (w *owner) beating(running ...*nats.Msg) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	data, _ := json.Marshal(w.body(tokens(running...), nil)) // strings and numbers cannot fail
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = w.nc.Publish("delay.hb."+w.name, data) // a connection that is gone shows elsewhere
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			close(quit)
			<-ended
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *owner) request(m *nats.Msg, body string) string {
	w.t.Helper()
	reply, err := w.nc.Request(m.Reply, []byte(body), patient)
	if err != nil {
		w.t.Fatalf("%q: %v", body, err)
	}
	return string(reply.Data)
}

// longSuspicion is a number of pings in whose time a worker that can be believed
// gone is gone several times over.
const longSuspicion = 25

// pinged waits for n more pings.
func (w *owner) pinged(n int64) {
	w.t.Helper()
	before := w.pings.Load()
	eventually(w.t, "pings of "+w.name, func() bool { return w.pings.Load() >= before+n })
}

// busy returns a worker that holds a job of target.
func (r *rig) busy(name, target string) *owner {
	r.t.Helper()
	w := r.owner(name, 1, target)
	w.beat()
	r.schedule("delay.in.0s."+target, "p")
	receive(r.t, w.jobs)
	return w
}

// fast keeps accounts of workers at a pace for tests.
func fast(c *adapter.Config) {
	c.WorkerTTL, c.WorkerPing, c.Drain = time.Hour, 20*time.Millisecond, 10*time.Millisecond
}

func drain(ch <-chan *nats.Msg) (ms []*nats.Msg) {
	for len(ch) > 0 {
		ms = append(ms, <-ch)
	}
	return ms
}

// tell publishes a heartbeat or farewell without waiting for its answer.
func (w *owner) tell(kind string, running ...*nats.Msg) {
	w.t.Helper()
	data, err := json.Marshal(w.body(tokens(running...), nil))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.nc.Publish("delay."+kind+"."+w.name, data); err != nil {
		w.t.Fatal(err)
	}
}

// prompt is shorter than the periods of all loops that look for jobs which
// nobody has told of.
const prompt = 1500 * time.Millisecond

// promptly returns what arrives on ch before any loop would have found it.
func promptly(t *testing.T, ch <-chan *nats.Msg) *nats.Msg {
	t.Helper()
	select {
	case m := <-ch:
		return m
	case <-time.After(prompt):
		t.Fatalf("nothing arrived within %v", prompt)
		return nil
	}
}

// settles returns a store and a channel that is closed when the job of that id is
// settled there for the first time, other than by a renewal.
func settles(id string) (job.Store, <-chan struct{}) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	settled := make(chan struct{})
	var once sync.Once
	store.settle = func(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
		res, err := store.Store.Settle(ctx, now, list)
		for i := range list {
			if list[i].ID == id && list[i].Outcome != job.Extend {
				once.Do(func() { close(settled) })
			}
		}
		return res, err
	}
	return store, settled
}

// await waits until ch is closed, in any goroutine.
func await(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patient):
		t.Errorf("not within %v: %s", patient, what)
	}
}

// claimStore lets a test see claims.
type claimStore struct {
	job.Store
	claimed func(job.ClaimRequest, job.Claimed)
}

func (s *claimStore) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	c, err := s.Store.Claim(ctx, r)
	s.claimed(r, c)
	return c, err
}
