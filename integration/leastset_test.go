package integration

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/workers"
	"github.com/nats-io/nats.go"
)

// With the documented sets all that a system does works, on two bridges, and nobody is
// refused anything.
func TestLeastPermissions(t *testing.T) {
	t.Parallel()
	s := &system{Checker: NewChecker(), t: t, kind: redisStore, dir: t.TempDir(),
		nats: testnats.Start(t, testnats.Config(documented(t, "conf permissions")+documented(t, "conf users")))}
	s.redis = testredis.Start(t)
	s.url = s.redis.URL()
	n := newNotes()
	as := func(user, inbox string) *nats.Conn { return s.user(n, user, "change me", inbox) }
	b1 := s.child("b1", "--nats-user", "bridge", "--nats-password", "change me", "--drain", "1s")
	b2 := s.child("b2", "--nats-user", "bridge", "--nats-password", "change me", "--drain", "1s")

	events := subscribed(t, as("operator", "operators"), "delay.event.dead", "")
	shop := as("shop", "orders")
	results := subscribed(t, shop, "_INBOX.orders.results", "")
	plain := subscribed(t, as("plain", "orders"), "orders.plain", "workers")
	answering := subscribed(t, as("answering", "orders"), "orders.answering", "workers")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	w, err := workers.New(as("w1", "orders"), workers.Config{Name: "w1", Subjects: []string{"orders.owned"}, Concurrency: 1, Logger: slog.New(slog.NewTextHandler(n, nil))},
		func(_ context.Context, j *workers.Job) error { j.SetResult([]byte("owned")); return nil })
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		n.note(w.Run(ctx))
	}()
	defer func() { stop(); <-ended }()

	s.order(shop, "delay.in.0s.orders.plain")
	m := received(t, plain)
	if err := errors.Join(m.InProgress(), m.AckSync()); err != nil {
		t.Errorf("a plain worker cannot acknowledge: %v", err)
	}
	s.order(shop, "delay.at.1700000000.orders.answering")
	m = received(t, answering)
	if err := errors.Join(m.InProgress(), m.AckSync()); err != nil {
		t.Errorf("a worker with allow_responses cannot acknowledge: %v", err)
	}
	s.order(shop, "delay.to.orders.owned", "Delay-In", "0s", "Delay-Reply-To", "_INBOX.orders.results")
	if m := received(t, results); string(m.Data) != "owned" {
		t.Errorf("result %q", m.Data)
	}
	s.order(shop, "delay.in.0s.orders.plain")
	if err := received(t, plain).Term(); err != nil {
		t.Errorf("Term: %v", err)
	}
	received(t, events)

	reader, operator := as("reader", "operators"), as("operator", "operators")
	for _, c := range []struct {
		nc      *nats.Conn
		subject string
	}{
		{reader, "$SRV.PING.delaybridge"}, {reader, "delay.api.list"}, {reader, "delay.api.stats"}, {reader, "delay.api.workers"},
		{reader, "delay.api.bridges"}, {reader, "delay.api.config"}, {shop, "delay.api.list.orders.plain"}, {shop, "delay.api.pause.orders.later"},
		{operator, "delay.api.resume.orders.later"}, {operator, "$SRV.INFO.delaybridge"},
	} {
		if reply, err := c.nc.Request(c.subject, nil, patient); err != nil || reply.Header.Get("Nats-Service-Error") != "" {
			t.Errorf("%s: %s, %v", c.subject, data(reply), err)
		}
	}

	// What a bridge has delivered that stops, another one settles.
	s.order(shop, "delay.in.0s.orders.plain")
	m = received(t, plain)
	first, second := b1, b2
	if strings.HasPrefix(m.Reply, "delay.ack.b2.") {
		first, second = b2, b1
	}
	first.end()
	if err := m.AckSync(); err != nil {
		t.Errorf("not acknowledged at the other bridge: %v", err)
	}
	stop()
	<-ended
	second.end()
	for _, line := range append(n.all(), append(b1.warned, b2.warned...)...) {
		if strings.Contains(strings.ToLower(line), "permission") {
			t.Error(line)
		}
	}
}

// order publishes a job that must be accepted.
func (s *system) order(nc *nats.Conn, subject string, headers ...string) {
	s.t.Helper()
	m := nats.NewMsg(subject)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	reply, err := nc.RequestMsg(m, patient)
	if err != nil {
		s.t.Fatalf("%s: %v", subject, err)
	}
	if reply.Header.Get("Nats-Service-Error") != "" {
		s.t.Fatalf("%s: %s", subject, reply.Data)
	}
}

// subscribed subscribes, in a queue group unless that is empty.
func subscribed(t *testing.T, nc *nats.Conn, subject, queue string) *nats.Subscription {
	t.Helper()
	sub, err := nc.QueueSubscribeSync(subject, queue)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func received(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(patient)
	if err != nil {
		t.Fatalf("nothing on %s: %v", sub.Subject, err)
	}
	return m
}

// What doctor looks for is what is documented.
func TestDoctorWithTheDocumentedSets(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(documented(t, "conf permissions")+documented(t, "conf users")))
	r := testredis.Start(t)
	redisUser(t, redisAdmin(t, r), "default", "nopass", "delay:*", redisRule(t))
	cmd := exec.Command(program, "doctor", "--nats-url", srv.URL(), "--nats-user", "bridge", "--nats-password", "change me",
		"--redis-url", r.URL(), "--data-dir", t.TempDir(), "--targets-allow", "orders.>", "--json")
	cmd.Env = childEnv("", 1)
	out, err := cmd.Output()
	if ee := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	var report struct {
		Checks []struct{ Check, Level, Seen string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	looked := 0
	for _, c := range report.Checks {
		if c.Check == "nats.permissions" || c.Check == "redis.acl" {
			looked++
			if c.Level != "ok" {
				t.Errorf("%s: %s: %s", c.Check, c.Level, c.Seen)
			}
		}
	}
	if looked < 2 {
		t.Errorf("doctor looked at no permissions: %s", out)
	}
}
