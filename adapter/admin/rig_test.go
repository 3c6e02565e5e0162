package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient bounds what a test waits for; it is never what a test measures.
const patient = 20 * time.Second

// rig is one bridge with its service, and a client.
type rig struct {
	testing.TB
	srv     *testnats.Server
	store   job.Store
	bridge  *adapter.Bridge
	service *admin.Service
	nc      *nats.Conn
	log     *logBuffer
}

type rigOption func(*rigConfig)

type rigConfig struct {
	id    string
	srv   *testnats.Server
	nats  []testnats.Option
	store job.Store
	admin admin.Options
	user  []nats.Option // of the client
	own   []nats.Option // of the bridge
}

func withStore(s job.Store) rigOption { return func(c *rigConfig) { c.store = s } }
func withNATS(o ...testnats.Option) rigOption {
	return func(c *rigConfig) { c.nats = o }
}
func withAdmin(f func(*admin.Options)) rigOption { return func(c *rigConfig) { f(&c.admin) } }

// beside runs a bridge of that id on the servers of another rig.
func beside(srv *testnats.Server, id string) rigOption {
	return func(c *rigConfig) { c.srv, c.id = srv, id }
}

func newRig(t testing.TB, opts ...rigOption) *rig {
	t.Helper()
	c := rigConfig{id: "b1"}
	for _, o := range opts {
		o(&c)
	}
	if c.srv == nil {
		c.srv = testnats.Start(t, c.nats...)
	}
	if c.store == nil {
		c.store = memdelay.New(memdelay.Options{})
	}
	r := &rig{TB: t, srv: c.srv, store: c.store, nc: connect(t, c.srv, c.user...), log: &logBuffer{}}
	conns := adapter.Conns{Intake: connect(t, c.srv, append(c.own, adapter.ConnOptions()...)...), Dispatch: connect(t, c.srv, append(c.own, adapter.ConnOptions()...)...)}
	cfg := adapter.Config{ID: c.id, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Drain: 100 * time.Millisecond}
	if f, ok := r.store.(*failover.Store); ok {
		cfg.Now = f.Now
	}
	var err error
	if r.bridge, err = adapter.New(cfg, conns, r.store, subjects.StoreLocal); err != nil {
		t.Fatal(err)
	}
	if f, ok := r.store.(*failover.Store); ok {
		f.SetObserver(r.bridge)
		f.SetPeers(r.bridge.Peers())
		run(t, func(ctx context.Context) error { f.Run(ctx); return nil })
	}
	run(t, r.bridge.Run)
	within(t, "the bridge to be ready", r.bridge.Ready())
	o := c.admin
	o.Bridge, o.Store, o.Prefix, o.Version, o.Logger = r.bridge, r.store, "delay", "v1.2.3", slog.New(slog.NewJSONHandler(r.log, nil))
	if r.service, err = admin.Serve(connect(t, c.srv, append(c.own, adapter.ConnOptions()...)...), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.service.Stop)
	return r
}

// run runs f until the test ends.
func run(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func connect(t testing.TB, srv *testnats.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	opts = append(opts, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	nc, err := nats.Connect(srv.URL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

func within[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patient):
		t.Fatalf("waited %v for %s", patient, what)
	}
	return v
}

// eventually waits until f has no objection.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	end := time.Now().Add(patient)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %v", patient, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) { w.t.Logf("%s", p); return len(p), nil }

// logBuffer holds the log of a service.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// reply is an answer of the service.
type reply struct {
	code int // of the header; 0: none
	text string
	body []byte
}

// ask sends body to <prefix>.api.<verb>.
func (r *rig) ask(verb, body string) reply {
	r.Helper()
	m, err := r.nc.Request("delay.api."+verb, []byte(body), patient)
	if err != nil {
		r.Fatalf("%s %s: %v", verb, body, err)
	}
	code, _ := strconv.Atoi(m.Header.Get(micro.ErrorCodeHeader))
	return reply{code, m.Header.Get(micro.ErrorHeader), m.Data}
}

// must asks and returns the answer, which is no failure.
func must[T any](r *rig, verb, body string) (v T) {
	r.Helper()
	a := r.ask(verb, body)
	if a.code != 0 {
		r.Fatalf("%s %s: %d %s", verb, body, a.code, a.text)
	}
	return read[T](r, a.body)
}

func read[T any](t testing.TB, data []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%T in %q: %v", v, data, err)
	}
	return v
}

// change asks for a change and checks the answer.
func (r *rig) change(verb, id string, want api.Change) api.Change {
	r.Helper()
	a := r.ask(verb, fmt.Sprintf(`{"id":%q}`, id))
	got := read[api.Change](r, a.body)
	want.ID = api.ID(id)
	due := got.Due
	got.Due = api.Time{}
	if got != want || (want.Result == job.ResultUnknown) != (a.code == 404) || a.code != 0 && a.code != 404 {
		r.Errorf("%s %s: %+v, code %d; want %+v", verb, id, got, a.code, want)
	}
	got.Due = due
	return got
}

// refuses asks and expects a failure of the codes whose text has all words.
func (r *rig) refuses(verb, body string, want *job.Error, words ...string) {
	r.Helper()
	a := r.ask(verb, body)
	f := read[api.Failure](r, a.body)
	if f.Error == nil || *f.Error != *want.With("%s", f.Error.Description) || a.code != want.Code || a.text != f.Error.Description {
		r.Errorf("%s %s: %d %q %s; want %v", verb, body, a.code, a.text, a.body, want)
		return
	}
	for _, w := range words {
		if !bytes.Contains([]byte(f.Error.Description), []byte(w)) {
			r.Errorf("%s %s: %q does not name %q", verb, body, f.Error.Description, w)
		}
	}
}

const hour = time.Hour

// put stores jobs that are due in an hour.
func (r *rig) put(target string, ids ...string) {
	r.Helper()
	put(r, r.store, r.bridge.Now().Add(hour), target, ids...)
}

func put(t testing.TB, s job.Queue, now job.Time, target string, ids ...string) {
	t.Helper()
	var jobs []job.Job
	for i, id := range ids {
		jobs = append(jobs, job.Job{ID: id, Target: target, Due: now.Add(time.Duration(i) * time.Second), Expires: now.Add(100 * hour), AckWait: time.Minute, MaxAttempts: 3, Payload: []byte("1234")})
	}
	results, err := s.Put(context.Background(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range results {
		if res.Err != nil || res.Duplicate {
			t.Fatalf("put %q: %+v", ids[i], res)
		}
	}
}

// lease makes jobs running, out of sight of the bridge: they are due far ahead.
func (r *rig) lease(target string, ids ...string) {
	r.Helper()
	put(r, r.store, r.bridge.Now().Add(time.Minute), target, ids...) // before those of put
	ahead := r.bridge.Now().Add(100 * time.Second)                   // less than ended jobs are remembered
	for range ids {
		c, err := r.store.Claim(context.Background(), job.ClaimRequest{Now: ahead, Until: ahead, Max: 1, Owner: "b9/w1"})
		if err != nil || len(c.Deliveries) != 1 {
			r.Fatalf("claim: %+v, %v", c, err)
		}
	}
}

// end makes jobs done or dead.
func (r *rig) end(as job.Outcome, target string, ids ...string) {
	r.Helper()
	r.lease(target, ids...)
	infos, err := r.store.Get(context.Background(), ids)
	if err != nil {
		r.Fatal(err)
	}
	for i := range infos {
		res, err := r.store.Settle(context.Background(), r.bridge.Now(), []job.Settlement{{Ref: infos[i].Ref(), Outcome: as, Reason: "max_attempts", Target: target}})
		if err != nil || res[0] != job.Settled {
			r.Fatalf("settle %q: %v, %v", ids[i], res, err)
		}
	}
}

// state returns what the store has of a job.
func (r *rig) state(id string) job.Info {
	r.Helper()
	infos, err := r.store.Get(context.Background(), []string{id})
	if err != nil {
		r.Fatal(err)
	}
	return infos[0]
}

// openFailover opens a store over Redis behind a proxy, with a disk of its own.
func openFailover(t testing.TB, redis *testredis.Server, id string) (*failover.Store, *testproxy.Proxy) {
	t.Helper()
	proxy := testproxy.Start(t, redis.Addr())
	logger := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	local, err := memdelay.Open(filepath.Join(t.TempDir(), "local"), memdelay.Options{Verdicts: true, Nonce: redisdelay.NewNonce, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	s, err := failover.Open(context.Background(), failover.Options{
		Bridge: id, Local: local, Mirror: memdelay.New(memdelay.Options{MaxJobs: 1 << 30}), Logger: logger, Permanent: redisdelay.Permanent,
		Thresholds: failover.Thresholds{ProbeEvery: 50 * time.Millisecond, ProbeSuspect: 20 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond,
			Dwell: 50 * time.Millisecond, MaxDwell: 100 * time.Millisecond, HandOver: 100 * time.Millisecond},
		Open: func(ctx context.Context, lost func(int, string)) (failover.Primary, error) {
			return redisdelay.Open(ctx, redisdelay.Options{URL: proxy.URL(), BridgeID: id, OnDataLoss: lost, Logger: logger, LookEvery: -1})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s, proxy
}

// mode waits until a store works in a mode.
func mode(t testing.TB, s *failover.Store, want job.Mode) {
	t.Helper()
	eventually(t, func() error {
		if m := s.Mode(); m != want {
			return fmt.Errorf("mode %v, want %v", m, want)
		}
		return nil
	})
}
