package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// patient bounds what a test waits for; it is never what a test measures.
const patient = 60 * time.Second

// soak says that the long forms run.
var soak = os.Getenv("DELAYBRIDGE_SOAK") != ""

// pick returns the size of a test in the form that runs.
func pick[T any](ci, long T) T {
	if soak {
		return long
	}
	return ci
}

// storeKind is one of the stores that a test runs on.
type storeKind string

const (
	memoryStore storeKind = "memory"
	redisStore  storeKind = "redis"
)

// onBothStores runs a test on each store, both at once.
func onBothStores(t *testing.T, test func(t *testing.T, kind storeKind)) {
	t.Parallel()
	for _, kind := range []storeKind{memoryStore, redisStore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// system is what bridges run on: a NATS server, a store, and a Checker.
type system struct {
	*Checker
	t                  *testing.T
	kind               storeKind
	nats               *testnats.Server
	dir                string   // of what children keep on disk
	env                []string // what children have in their environment besides
	memory             *memdelay.Store
	redis              *testredis.Server
	url                string                    // of Redis, as bridges see it
	asBridge, asClient nats.Option               // who they are to NATS; nil: anybody
	look               job.Store                 // the test's own view of the store
	wrap               func(job.Store) job.Store // puts a fault between a bridge and its store; nil: none

	silence time.Duration // after which a producer gives up waiting
	killed  atomic.Bool   // a bridge was killed, so that messages get lost
}

func newSystem(t *testing.T, kind storeKind, opts ...testnats.Option) *system {
	t.Helper()
	s := &system{Checker: NewChecker(), t: t, kind: kind, dir: t.TempDir(), silence: patient, nats: testnats.Start(t, opts...)}
	if kind == redisStore {
		s.redis = testredis.Start(t)
		s.url = s.redis.URL()
	} else {
		s.memory = memdelay.New(memdelay.Options{MaxJobs: 2_000_000})
	}
	s.look, _ = s.open("test")
	return s
}

// open returns the store as the bridge of that id sees it, and its clock.
func (s *system) open(id string) (job.Store, func() time.Time) {
	s.t.Helper()
	if s.kind == memoryStore {
		return s.memory, nil
	}
	store, err := redisdelay.Open(context.Background(), redisdelay.Options{URL: s.url, BridgeID: id, Logger: s.logger(id)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := store.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return store, store.Now
}

func (s *system) logger(id string) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{s.t}, nil)).With("bridge", id)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// bridge is a bridge inside the test's process.
type bridge struct {
	stop func() // in order; more than once is harmless
}

// bridge starts a bridge that runs until the test ends.
func (s *system) bridge(id string, change ...func(*adapter.Config)) *bridge {
	s.t.Helper()
	store, now := s.open(id)
	if s.wrap != nil {
		store = s.wrap(store)
	}
	cfg := adapter.Config{ID: id, Now: now, Logger: s.logger(id)}
	for _, c := range change {
		c(&cfg)
	}
	conn := func(role string) *nats.Conn {
		return s.connect(s.asBridge, append(adapter.ConnOptions(), nats.Name("delaybridge/"+id+"/"+role))...)
	}
	letter := subjects.StoreLocal
	if s.kind == redisStore {
		letter = subjects.StoreRedis
	}
	b, err := adapter.New(cfg, adapter.Conns{Intake: conn("intake"), Dispatch: conn("dispatch")}, store, letter)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.run(b)
}

func (s *system) run(b *adapter.Bridge) *bridge {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-ended:
		cancel()
		s.t.Fatalf("bridge ended before it was ready: %v", err)
	}
	r := &bridge{stop: sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("bridge: %v", err)
		}
	})}
	s.t.Cleanup(r.stop)
	return r
}

// client returns a new connection for producers or workers.
func (s *system) client() *nats.Conn {
	s.t.Helper()
	return s.connect(s.asClient)
}

func (s *system) connect(as nats.Option, opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	if as != nil {
		opts = append(opts, as)
	}
	nc, err := nats.Connect(s.nats.URL(), opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// await ends the test when what is not soon.
func (s *system) await(what string, done <-chan struct{}) {
	s.t.Helper()
	select {
	case <-done:
	case <-time.After(pick(patient, 30*patient)):
		s.t.Fatalf("%s: not within %v; counts %+v", what, patient, s.Counts())
	}
}

// awaitCounts waits until the counts are as cond says.
func (s *system) awaitCounts(what string, cond func(Counts) bool) {
	s.t.Helper()
	s.await(what, s.Await(cond))
}

// eventually polls the store, which tells nobody when it changes.
func (s *system) eventually(what string, cond func(ctx context.Context) (bool, error)) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	for {
		ok, err := cond(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			s.t.Fatalf("%s: %v", what, err)
		case ok:
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%s: not within %v; counts %+v", what, patient, s.Counts())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// awaitEmpty waits until the store holds no live job: nothing can be delivered
// any more.
func (s *system) awaitEmpty() {
	s.t.Helper()
	var left []job.Info
	defer func() {
		for _, i := range left {
			s.t.Logf("left: %q, %s at attempt %d, next %s, due %s, of %q", i.ID, i.State, i.Attempt, i.Next.Time(), i.Due.Time(), i.Owner)
		}
	}()
	s.eventually("no job pending or running", func(ctx context.Context) (bool, error) {
		// A job may pass from one state to the other between two looks.
		for _, state := range []job.State{job.Running, job.Pending, job.Running, job.Pending, job.Running} {
			var err error
			if left, err = s.holds(ctx, job.Query{State: state, Limit: 3}); err != nil || len(left) > 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// holds returns the first jobs that the store has for q. A page may be empty
// without being the last.
func (s *system) holds(ctx context.Context, q job.Query) ([]job.Info, error) {
	for {
		page, err := s.look.List(ctx, q)
		if err != nil || len(page.Jobs) > 0 || page.Cursor == "" {
			return page.Jobs, err
		}
		q.Cursor = page.Cursor
	}
}

// verify waits until nothing can be delivered any more, stops the bridges so
// that all they published has left them, lets the workers receive it, and
// reports what was broken.
func (s *system) verify(rule Rule, workers []*nats.Conn, bridges ...*bridge) {
	s.t.Helper()
	s.awaitEmpty()
	for _, b := range bridges {
		b.stop()
	}
	for _, nc := range workers {
		drained(s.t, nc)
	}
	for _, v := range s.Violations(rule) {
		s.t.Error(v)
	}
	dead, err := s.look.List(context.Background(), job.Query{State: job.Dead, Limit: 10})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range dead.Jobs {
		s.t.Errorf("job %q of %s is dead: %s", d.ID, d.Target, d.Reason)
	}
}

// drained returns when all that the server sent to nc has been handled.
func drained(t *testing.T, nc *nats.Conn) {
	t.Helper()
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	if err := nc.Drain(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(patient):
		t.Fatalf("connection not drained within %v", patient)
	}
}

// worker subscribes handle to the target in a queue group, over a connection
// of its own: one after the other, each delivery recorded before it is handled.
func (s *system) worker(target string, handle func(m *nats.Msg, d Delivery)) *nats.Conn {
	s.t.Helper()
	nc := s.client()
	sub, err := nc.QueueSubscribe(target, "workers", func(m *nats.Msg) { handle(m, s.Delivered(m)) })
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return nc
}

// done completes a delivery, not waiting for the answer.
func done(m *nats.Msg, _ Delivery) { _ = m.Respond(nil) } // a connection that is gone shows elsewhere

// doneLater completes a delivery after some work, beside which others are
// handled.
func doneLater(m *nats.Msg, d Delivery) {
	time.AfterFunc(20*time.Millisecond, func() { done(m, d) })
}

// in returns the message of a job that is due after d.
func (s *system) in(d time.Duration, target string) *nats.Msg {
	return s.Send(fmt.Sprintf("delay.in.%s.%s", d, target), target, time.Now().Truncate(time.Microsecond).Add(d))
}

// at returns the message of a job that is due at t, which must be a whole
// millisecond.
func (s *system) at(t time.Time, target string) *nats.Msg {
	return s.Send(fmt.Sprintf("delay.at.%013d.%s", t.UnixMilli(), target), target, t)
}

// publish sends m, waits for the answer and returns it.
func (s *system) publish(nc *nats.Conn, m *nats.Msg) Answer {
	reply, err := nc.RequestMsg(m, patient)
	return s.Answered(m, reply, err)
}

// accept is publish of what must be accepted.
func (s *system) accept(nc *nats.Conn, m *nats.Msg) Answer {
	s.t.Helper()
	a := s.publish(nc, m)
	if a.ID == "" {
		s.t.Fatalf("%s: not accepted: %+v", m.Subject, a)
	}
	return a
}

// flood publishes n messages with a window of unanswered ones, and returns
// when all are answered.
func (s *system) flood(n int, next func(i int) *nats.Msg) {
	s.t.Helper()
	const window = 2048
	nc := s.client()
	defer nc.Close()
	inbox := nats.NewInbox()
	open := make(map[string]*nats.Msg, window)
	replies := make(chan *nats.Msg, 2*window)
	if _, err := nc.ChanSubscribe(inbox+".*", replies); err != nil {
		s.t.Fatal(err)
	}
	take := func() {
		select {
		case r := <-replies:
			s.Answered(open[r.Subject], r, nil)
			delete(open, r.Subject)
		case <-time.After(patient):
			s.t.Fatalf("%d messages not answered within %v", len(open), patient)
		}
	}
	for i := range n {
		m := next(i)
		m.Reply = fmt.Sprintf("%s.%d", inbox, i)
		open[m.Reply] = m
		if err := nc.PublishMsg(m); err != nil {
			s.t.Fatal(err)
		}
		for len(open) >= window || len(replies) > 0 {
			take()
		}
	}
	for len(open) > 0 {
		take()
	}
}
