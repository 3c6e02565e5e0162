package adapter_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient bounds what a test waits for; it is never what a test measures.
const patient = 20 * time.Second

// rig is one bridge over a memory store and a real NATS server.
type rig struct {
	t      *testing.T
	cfg    rigConfig
	srv    *testnats.Server
	store  job.Store
	nc     *nats.Conn
	bridge *adapter.Bridge
	conns  adapter.Conns
	cancel context.CancelFunc // tells the bridge to stop
	stop   func() error       // stops the bridge and returns what Run returned
}

type rigOption func(*rigConfig)

type rigConfig struct {
	bridge adapter.Config
	nats   []testnats.Option
	user   []nats.Option // of the bridge
	client []nats.Option
	store  job.Store
	srv    *testnats.Server
}

func withConfig(f func(*adapter.Config)) rigOption { return func(c *rigConfig) { f(&c.bridge) } }
func withNATS(o ...testnats.Option) rigOption      { return func(c *rigConfig) { c.nats = o } }
func withStore(s job.Store) rigOption              { return func(c *rigConfig) { c.store = s } }
func withUsers(bridge, client nats.Option) rigOption {
	return func(c *rigConfig) { c.user, c.client = []nats.Option{bridge}, []nats.Option{client} }
}

// beside runs a bridge on the servers and the store of another rig.
func beside(r *rig) rigOption { return func(c *rigConfig) { c.store, c.srv = r.store, r.srv } }

func newRig(t *testing.T, opts ...rigOption) *rig {
	t.Helper()
	c := rigConfig{bridge: adapter.Config{ID: "b1", Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Drain: 2 * time.Second}}
	for _, o := range opts {
		o(&c)
	}
	if c.srv == nil {
		c.srv = testnats.Start(t, c.nats...)
	}
	if c.store == nil {
		c.store = memdelay.New(memdelay.Options{})
	}
	r := &rig{t: t, cfg: c, srv: c.srv, store: c.store, nc: connect(t, c.srv.URL(), c.client...)}
	r.start()
	return r
}

// start runs a bridge; a rig whose bridge has stopped can start another one.
func (r *rig) start() {
	r.t.Helper()
	b, run := r.newBridge()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-done:
		cancel()
		r.t.Fatalf("bridge ended before it was ready: %v", err)
	}
	stopped := false
	r.bridge, r.cancel = b, cancel
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	stop := r.stop
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
}

// newBridge makes a bridge that does not run yet.
func (r *rig) newBridge() (*adapter.Bridge, func(context.Context) error) {
	r.t.Helper()
	opts := append(adapter.ConnOptions(), nats.ReconnectWait(10*time.Millisecond))
	opts = append(opts, r.cfg.user...)
	conns := adapter.Conns{Intake: connect(r.t, r.srv.URL(), opts...), Dispatch: connect(r.t, r.srv.URL(), opts...)}
	r.conns = conns
	b, err := adapter.New(r.cfg.bridge, conns, r.store, subjects.StoreLocal)
	if err != nil {
		r.t.Fatal(err)
	}
	return b, b.Run
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// pubAck is the reply to a producer.
type pubAck struct {
	Stream    string
	Seq       uint64
	Duplicate bool
	ID        string
	Due       time.Time
	Stored    string
	Error     *pubError
}

type pubError struct {
	Code        int
	ErrCode     int `json:"err_code"`
	Description string
}

// message makes a message; headers are pairs of name and value.
func message(subject, payload string, headers ...string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte(payload)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	return m
}

// request publishes to an intake subject and returns the reply.
func (r *rig) request(subject, payload string, headers ...string) pubAck {
	r.t.Helper()
	reply, err := r.nc.RequestMsg(message(subject, payload, headers...), patient)
	if err != nil {
		r.t.Fatalf("%s: %v", subject, err)
	}
	return decodeAck(r.t, reply)
}

func decodeAck(t *testing.T, reply *nats.Msg) (a pubAck) {
	t.Helper()
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		t.Fatalf("reply %q: %v", reply.Data, err)
	}
	return a
}

// schedule is request that must succeed.
func (r *rig) schedule(subject, payload string, headers ...string) pubAck {
	r.t.Helper()
	a := r.request(subject, payload, headers...)
	if a.Error != nil {
		r.t.Fatalf("%s: refused: %+v", subject, *a.Error)
	}
	return a
}

// scheduleAll schedules n jobs, each with the payload that text gives it,
// without waiting between them, and returns their ids.
func (r *rig) scheduleAll(n int, subject func(int) string, text func(int) string, headers ...string) []string {
	r.t.Helper()
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox)
	for i := range n {
		m := message(subject(i), text(i), headers...)
		m.Reply = inbox
		if err := r.nc.PublishMsg(m); err != nil {
			r.t.Fatal(err)
		}
	}
	ids := make([]string, n)
	for i := range ids {
		a := decodeAck(r.t, receive(r.t, replies))
		if a.Error != nil {
			r.t.Fatalf("refused: %+v", *a.Error)
		}
		ids[i] = a.ID
	}
	return ids
}

// always is a subject or payload that is the same for each of many jobs.
func always(s string) func(int) string { return func(int) string { return s } }

// listen subscribes and returns what arrives.
func (r *rig) listen(subject string) <-chan *nats.Msg {
	r.t.Helper()
	ch := make(chan *nats.Msg, 50000)
	if _, err := r.nc.ChanSubscribe(subject, ch); err != nil {
		r.t.Fatal(err)
	}
	r.flush()
	return ch
}

// worker subscribes to target in a queue group and returns what arrives.
func (r *rig) worker(target string) <-chan *nats.Msg {
	r.t.Helper()
	ch := make(chan *nats.Msg, 50000)
	if _, err := r.nc.ChanQueueSubscribe(target, "workers", ch); err != nil {
		r.t.Fatal(err)
	}
	r.flush()
	return ch
}

func (r *rig) flush() {
	r.t.Helper()
	if err := r.nc.FlushTimeout(patient); err != nil {
		r.t.Fatal(err)
	}
}

// intakeArrived waits until the bridge has received what was published before.
func (r *rig) intakeArrived() {
	r.t.Helper()
	r.flush()
	if err := r.conns.Intake.FlushTimeout(patient); err != nil {
		r.t.Fatal(err)
	}
}

// dispatchArrived is intakeArrived for the other connection.
func (r *rig) dispatchArrived() {
	r.t.Helper()
	r.flush()
	if err := r.conns.Dispatch.FlushTimeout(patient); err != nil {
		r.t.Fatal(err)
	}
}

func receive(t *testing.T, ch <-chan *nats.Msg) *nats.Msg {
	t.Helper()
	select {
	case m := <-ch:
		return m
	case <-time.After(patient):
		t.Fatal("nothing arrived")
		return nil
	}
}

// nothing fails the test when something has arrived on ch.
func nothing(t *testing.T, ch <-chan *nats.Msg) {
	t.Helper()
	select {
	case m := <-ch:
		t.Errorf("arrived on %s: %q %v", m.Subject, m.Data, m.Header)
	default:
	}
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patient); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patient, what)
		}
	}
}

// settle answers a delivery with a verb and waits for the bridge's answer.
func (r *rig) settle(m *nats.Msg, verb string) string {
	r.t.Helper()
	reply, err := r.nc.Request(m.Reply, []byte(verb), patient)
	if err != nil {
		r.t.Fatalf("settle %q: %v", verb, err)
	}
	return string(reply.Data)
}

// done completes a delivery, which must be accepted.
func (r *rig) done(m *nats.Msg) {
	r.t.Helper()
	if answer := r.settle(m, ""); answer != "" {
		r.t.Fatalf("completion answered %q", answer)
	}
}

// state returns the job's state in the store.
func (r *rig) state(id string) job.Info {
	r.t.Helper()
	infos, err := r.store.Get(context.Background(), []string{id})
	if err != nil {
		r.t.Fatal(err)
	}
	return infos[0]
}

// becomes waits until the job is in state.
func (r *rig) becomes(id string, state job.State) job.Info {
	r.t.Helper()
	var info job.Info
	defer func() {
		if info.State != state {
			r.t.Logf("it is %s at attempt %d, next %v", info.State, info.Attempt, info.Next.Time())
		}
	}()
	eventually(r.t, "job "+id+" is "+string(state), func() bool {
		info = r.state(id)
		return info.State == state
	})
	return info
}

// faultStore is a store whose calls can be made to fail or to wait.
type faultStore struct {
	job.Store
	put    func(context.Context, []job.Job) ([]job.PutResult, error)
	settle func(context.Context, job.Time, []job.Settlement) ([]job.SettleResult, error)
}

func (s *faultStore) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	if s.put != nil {
		return s.put(ctx, jobs)
	}
	return s.Store.Put(ctx, jobs)
}

func (s *faultStore) Settle(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	if s.settle != nil {
		return s.settle(ctx, now, list)
	}
	return s.Store.Settle(ctx, now, list)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// blindStore is a store that can be made unable to look jobs up.
type blindStore struct {
	job.Store
	blind atomic.Bool
}

func (s *blindStore) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	if s.blind.Load() {
		return nil, job.ErrUnavailable
	}
	return s.Store.Get(ctx, ids)
}
