package adapter_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
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
	t     *testing.T
	url   string
	store job.Store
	nc    *nats.Conn
	stop  func() error // stops the bridge and returns what Run returned
}

type rigOption func(*rigConfig)

type rigConfig struct {
	bridge adapter.Config
	nats   []testnats.Option
	user   []nats.Option // of the bridge
	client []nats.Option
	store  job.Store
	url    string
}

func withConfig(f func(*adapter.Config)) rigOption { return func(c *rigConfig) { f(&c.bridge) } }
func withNATS(o ...testnats.Option) rigOption      { return func(c *rigConfig) { c.nats = o } }
func withUsers(bridge, client nats.Option) rigOption {
	return func(c *rigConfig) { c.user, c.client = []nats.Option{bridge}, []nats.Option{client} }
}

// beside runs a bridge on the servers and the store of another rig.
func beside(r *rig) rigOption { return func(c *rigConfig) { c.store, c.url = r.store, r.url } }

func newRig(t *testing.T, opts ...rigOption) *rig {
	t.Helper()
	c := rigConfig{bridge: adapter.Config{ID: "b1", Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Drain: 2 * time.Second}}
	for _, o := range opts {
		o(&c)
	}
	if c.url == "" {
		c.url = testnats.Start(t, c.nats...).URL()
	}
	if c.store == nil {
		c.store = memdelay.New(memdelay.Options{})
	}
	r := &rig{t: t, url: c.url, store: c.store, nc: connect(t, c.url, c.client...)}
	r.start(c)
	return r
}

func (r *rig) start(c rigConfig) {
	t := r.t
	t.Helper()
	conns := adapter.Conns{
		Intake:   connect(t, c.url, append(adapter.ConnOptions(), c.user...)...),
		Dispatch: connect(t, c.url, append(adapter.ConnOptions(), c.user...)...),
	}
	b, err := adapter.New(c.bridge, conns, r.store, subjects.StoreLocal)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("bridge ended before it was ready: %v", err)
	}
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
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
	Error     *struct {
		Code        int
		ErrCode     int `json:"err_code"`
		Description string
	}
}

// request publishes to an intake subject and returns the reply. Headers are
// pairs of name and value.
func (r *rig) request(subject, payload string, headers ...string) pubAck {
	r.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(payload)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	reply, err := r.nc.RequestMsg(m, patient)
	if err != nil {
		r.t.Fatalf("%s: %v", subject, err)
	}
	var a pubAck
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		r.t.Fatalf("%s: reply %q: %v", subject, reply.Data, err)
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

// worker subscribes to target in a queue group and returns what arrives.
func (r *rig) worker(target string) <-chan *nats.Msg {
	r.t.Helper()
	ch := make(chan *nats.Msg, 10000)
	if _, err := r.nc.ChanQueueSubscribe(target, "workers", ch); err != nil {
		r.t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		r.t.Fatal(err)
	}
	return ch
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

// settle answers a delivery with a verb and waits for the bridge's answer.
func (r *rig) settle(m *nats.Msg, verb string) string {
	r.t.Helper()
	reply, err := r.nc.Request(m.Reply, []byte(verb), patient)
	if err != nil {
		r.t.Fatalf("settle %q: %v", verb, err)
	}
	return string(reply.Data)
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

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

var _ io.Writer = testWriter{}
