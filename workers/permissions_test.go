package workers_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// restricted is a server whose user w may not subscribe to denied.
func restricted(t *testing.T, denied string) *testnats.Server {
	return testnats.Start(t, testnats.Config(`authorization: {users: [
		{user: b, password: b},
		{user: w, password: w, permissions: {publish: ">", subscribe: {allow: ">", deny: ["`+denied+`"]}}}
	]}
	no_auth_user: b`))
}

func TestWithoutPermissionForPings(t *testing.T) {
	srv := restricted(t, "delay.ping.>")
	b := newBridge(t, srv, nats.UserInfo("b", "b"))
	log := &lines{}
	cfg := config()
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	w := run(t, b, connect(t, srv, nats.UserInfo("w", "w")), cfg, done)
	if m := b.settled(b.direct(w, "p"), 1); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
	w.end(t)
	if n := strings.Count(log.String(), "bridges cannot ask"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log)
	}
}

func TestWithoutPermissionForDirectedJobs(t *testing.T) {
	srv := restricted(t, "delay.job.>")
	b := newBridge(t, srv, nats.UserInfo("b", "b"))
	w := run(t, b, connect(t, srv, nats.UserInfo("w", "w")), config(), done)
	h := b.beatThat("any", func(h beat) bool { return h.Worker == w.Name() })
	if h.Directed {
		t.Error("says that it takes directed jobs")
	}
	if m := b.settled(b.send("t.x", "p"), 2); m.body != "+ACK" {
		t.Errorf("settled with %q", m.body)
	}
}

func TestWithoutPermissionForItsSubject(t *testing.T) {
	srv := restricted(t, "t.>")
	b := newBridge(t, srv, nats.UserInfo("b", "b"))
	w, err := workers.New(connect(t, srv, nats.UserInfo("w", "w")), config(), done)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := w.Run(ctx); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"t.>"`) {
		t.Errorf("Run: %v", err)
	}
	b.flush()
}

func TestTwoWorkersOfAProcess(t *testing.T) {
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	nc := connect(t, srv)
	first, second := newHold(), newHold()
	one, two := run(t, b, nc, config(), first.handle), run(t, b, nc, config(), second.handle)
	if one.Name() == two.Name() {
		t.Fatalf("both are called %s", one.Name())
	}
	b.direct(two, "p")
	receive(t, second.began)
	b.direct(one, "p")
	receive(t, first.began)
	first.let <- nil
	second.let <- nil
}
