package client_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func connect(t testing.TB, srv *testnats.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(srv.URL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// startBridge runs a bridge with the prefix "later" until the test ends.
func startBridge(t testing.TB, srv *testnats.Server) {
	t.Helper()
	store := memdelay.New(memdelay.Options{MaxJobs: 30_000})
	conns := adapter.Conns{Intake: connect(t, srv, adapter.ConnOptions()...), Dispatch: connect(t, srv, adapter.ConnOptions()...)}
	b, err := adapter.New(adapter.Config{ID: "test", Prefix: "later", Drain: time.Second}, conns, store, subjects.StoreLocal)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, store.Close()); err != nil {
			t.Error(err)
		}
	})
	<-b.Ready()
	service, err := admin.Serve(connect(t, srv), admin.Options{Bridge: b, Store: store, Prefix: "later", Version: "1.0.0", Logger: slog.New(slog.DiscardHandler),
		Config: func() map[string]string { return map[string]string{"prefix": "later"} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(service.Stop)
}

func newClient(t testing.TB, nc *nats.Conn, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(nc, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSchedule(t *testing.T) {
	srv := testnats.Start(t)
	startBridge(t, srv)
	nc := connect(t, srv)
	c := newClient(t, nc, client.Options{Prefix: "later"})
	sub, err := nc.QueueSubscribeSync("orders.x", "workers")
	if err != nil {
		t.Fatal(err)
	}
	header := nats.Header{"Delay-Ack-Wait": {"7s"}, "Colour": {"red", "blue"}}
	before := time.Now()
	r, err := c.Schedule(context.Background(), client.Job{ID: "a", Target: "orders.x", Payload: []byte("hello"), Header: header}, 30*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if in := r.Due.Sub(before); r.ID != "a" || r.Stored != "memory" || r.Duplicate || r.Seq == 0 || in < 30*time.Millisecond || in > patience {
		t.Errorf("receipt %+v, due after %v", r, in)
	}
	if len(header) != 2 {
		t.Errorf("the caller's header was changed: %v", header)
	}
	m, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Data) != "hello" || m.Header.Get("Delay-Ack-Wait") != "7s" || !slices.Equal(m.Header["Colour"], header["Colour"]) || m.Header.Get("Nats-Msg-Id") != "a" {
		t.Errorf("delivered %q with %v", m.Data, m.Header)
	}
	if _, err := nc.Request(m.Reply, nil, patience); err != nil {
		t.Errorf("acknowledgement: %v", err)
	}
}

func TestScheduleAt(t *testing.T) {
	srv := testnats.Start(t)
	startBridge(t, srv)
	c := newClient(t, connect(t, srv), client.Options{Prefix: "later"})
	due := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	first, err := c.ScheduleAt(context.Background(), client.Job{ID: "a", Target: "orders.x"}, due)
	if err != nil || !first.Due.Equal(due) {
		t.Fatalf("%v, %v; want due %v", first, err, due)
	}
	second, err := c.ScheduleAt(context.Background(), client.Job{ID: "a", Target: "orders.x"}, due.Add(time.Hour))
	if err != nil || !second.Duplicate || !second.Due.Equal(due) {
		t.Errorf("the same id again: %v, %v; want a duplicate due %v", second, err, due)
	}
	third, err := c.ScheduleAt(context.Background(), client.Job{ID: "a", Target: "orders.x", Replace: true}, due.Add(time.Hour))
	if err != nil || third.Duplicate || !third.Due.Equal(due.Add(time.Hour)) {
		t.Errorf("replaced: %v, %v", third, err)
	}
}

func TestRefusals(t *testing.T) {
	srv := testnats.Start(t, testnats.MaxPayload(4096))
	startBridge(t, srv)
	c := newClient(t, connect(t, srv), client.Options{Prefix: "later"})
	for _, tt := range []struct {
		job   client.Job
		delay time.Duration
		want  *client.Error
	}{
		{client.Job{Target: "orders.x"}, -time.Second, client.ErrSchedule},
		{client.Job{Target: "orders.x"}, 20 * 366 * 24 * time.Hour, client.ErrSchedule},
		{client.Job{Target: "orders.x", Header: nats.Header{"Delay-At": {"2030-01-01T00:00:00Z"}}}, time.Second, client.ErrSchedule},
		{client.Job{Target: ""}, 0, client.ErrTarget},
		{client.Job{Target: "orders.*"}, 0, client.ErrTarget},
		{client.Job{Target: "later.in.1s.x"}, 0, client.ErrTarget},
		{client.Job{Target: "orders x"}, 0, client.ErrTarget},
		{client.Job{Target: "orders.x", Header: nats.Header{"Delay-Bogus": {"1"}}}, 0, client.ErrHeader},
		{client.Job{Target: "orders.x", Payload: make([]byte, 4000)}, 0, client.ErrTooLarge},
		{client.Job{Target: "orders.x", Payload: make([]byte, 5000)}, 0, client.ErrTooLarge},
	} {
		_, err := c.Schedule(context.Background(), tt.job, tt.delay)
		var e *client.Error
		if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Description == "" {
			t.Errorf("target %q in %v: %v, want %v", tt.job.Target, tt.delay, err, tt.want)
		}
	}
}

func TestNoBridge(t *testing.T) {
	srv := testnats.Start(t)
	c := newClient(t, connect(t, srv), client.Options{})
	if _, err := c.Schedule(context.Background(), client.Job{Target: "orders.x"}, 0); !errors.Is(err, client.ErrNoBridge) || !strings.Contains(err.Error(), "delay.to.orders.x") {
		t.Errorf("%v, want ErrNoBridge with the subject", err)
	}
}

func TestAnswersOfOthers(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv)
	c := newClient(t, nc, client.Options{Timeout: 50 * time.Millisecond})
	answer := []byte(`{"stream":"ORDERS","seq":1}`)
	if _, err := nc.Subscribe("delay.to.stream", func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.SubscribeSync("delay.to.silent"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Schedule(context.Background(), client.Job{Target: "stream"}, 0); err == nil || !strings.Contains(err.Error(), "stream") {
		t.Errorf("answer of a stream: %v", err)
	}
	if _, err := c.Schedule(context.Background(), client.Job{Target: "silent"}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v, want DeadlineExceeded", err)
	}
}

func TestNewChecksPrefix(t *testing.T) {
	if _, err := client.New(nil, client.Options{Prefix: "a..b"}); err == nil {
		t.Error("prefix a..b is taken")
	}
}
