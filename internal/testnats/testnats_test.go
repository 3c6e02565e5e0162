package testnats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

const wait = 5 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, srv *testnats.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(srv.URL(), append(opts, nats.NoReconnect())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestRequestReply(t *testing.T) {
	srv, other := testnats.Start(t), testnats.Start(t)
	if srv.URL() == other.URL() {
		t.Fatalf("two servers share %s", srv.URL())
	}
	nc := connect(t, srv)
	if _, err := nc.Subscribe("greet", func(m *nats.Msg) { m.Respond([]byte("hello")) }); err != nil {
		t.Fatal(err)
	}
	reply, err := nc.Request("greet", nil, wait)
	if err != nil || string(reply.Data) != "hello" {
		t.Fatalf("reply %v, error %v; want hello", reply, err)
	}
	if _, err := connect(t, other).Request("greet", nil, wait); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("request on the other server: error %v, want no responders", err)
	}
}

func TestShutdownClosesClients(t *testing.T) {
	srv := testnats.Start(t)
	closed := make(chan struct{})
	connect(t, srv, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	srv.Shutdown()
	select {
	case <-closed:
	case <-time.After(wait):
		t.Fatal("client still connected after Shutdown")
	}
	if nc, err := nats.Connect(srv.URL()); err == nil {
		nc.Close()
		t.Fatalf("%s still takes connections after Shutdown", srv.URL())
	}
}

func TestJetStreamKeepsItsDir(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	first := testnats.Start(t, testnats.JetStream(dir))
	js, err := jetstream.New(connect(t, first))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s.1", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	first.Shutdown()

	js, err = jetstream.New(connect(t, testnats.Start(t, testnats.JetStream(dir))))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetMsg(ctx, 1)
	if err != nil || string(msg.Data) != "kept" {
		t.Fatalf("message %v, error %v; want the one published before", msg, err)
	}
}

func TestMaxPayload(t *testing.T) {
	nc := connect(t, testnats.Start(t, testnats.MaxPayload(100)))
	if got := nc.MaxPayload(); got != 100 {
		t.Fatalf("max_payload %d, want 100", got)
	}
	if err := nc.Publish("x", make([]byte, 101)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Fatalf("101 bytes: error %v, want %v", err, nats.ErrMaxPayload)
	}
}

func TestConfigPermissions(t *testing.T) {
	srv := testnats.Start(t, testnats.Config(`
		port: 4222 # overruled
		authorization: {
			users: [{user: alice, password: secret, permissions: {publish: ["open.>"]}}]
		}`))
	if nc, err := nats.Connect(srv.URL()); !errors.Is(err, nats.ErrAuthorization) {
		nc.Close()
		t.Fatalf("without a password: error %v, want %v", err, nats.ErrAuthorization)
	}
	refused := make(chan error, 1)
	nc := connect(t, srv, nats.UserInfo("alice", "secret"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	for _, subject := range []string{"open.x", "closed.x"} {
		if err := nc.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-refused:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Fatalf("error %v, want %v", err, nats.ErrPermissionViolation)
		}
	case <-time.After(wait):
		t.Fatal("publishing to closed.x was not refused")
	}
}

func TestRestartKeepsThePort(t *testing.T) {
	srv := testnats.Start(t)
	url := srv.URL()
	back := make(chan struct{}, 1)
	nc, err := nats.Connect(url, nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	srv.Restart(t)
	if got := srv.URL(); got != url {
		t.Fatalf("server is at %s after the restart, was at %s", got, url)
	}
	select {
	case <-back:
	case <-time.After(wait):
		t.Fatal("client not connected again")
	}
}

func TestReloadPermissions(t *testing.T) {
	users := func(publish string) testnats.Option {
		return testnats.Config(`authorization: {users: [{user: alice, password: secret, permissions: {publish: ["_INBOX.>", "` + publish + `"]}}]}`)
	}
	srv := testnats.Start(t, users("before"))
	srv.Reload(t, users("after"))
	nc := connect(t, srv, nats.UserInfo("alice", "secret"))
	if _, err := nc.Subscribe("after", func(m *nats.Msg) { m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("after", nil, wait); err != nil {
		t.Fatalf("publishing to what the reload allows: %v", err)
	}
}
