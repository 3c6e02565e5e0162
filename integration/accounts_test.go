package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
	"github.com/nats-io/nats.go"
)

// newAccounts starts a server with a configuration, and a bridge in one of its
// accounts.
func newAccounts(t *testing.T, config string) (*system, *notes) {
	t.Helper()
	s := &system{Checker: NewChecker(), t: t, dir: t.TempDir(), nats: testnats.Start(t, testnats.Config(config))}
	n := newNotes()
	s.try(n, "b1", "bridge", "--nats-password", "change me", "--store", "local", "--data-dir", "")(t)
	return s, n
}

// Producers and workers in accounts of their own reach a bridge as documented.
func TestAccounts(t *testing.T) {
	t.Parallel()
	s, log := newAccounts(t, documented(t, "conf accounts"))
	shop := s.user(log, "shop", "change me", "orders")
	work := s.user(log, "w1", "change me", "orders")
	results := subscribed(t, shop, "results.orders.*", "")
	plain, other := subscribed(t, work, "orders.plain", "workers"), subscribed(t, s.user(log, "w1", "change me", "orders"), "orders.plain", "workers")

	t.Run("every form is answered", func(t *testing.T) {
		for _, m := range []*nats.Msg{{Subject: "delay.in.1h.orders.x"}, {Subject: "delay.at.1900000000.orders.x"}, {Subject: "delay.to.orders.x", Header: nats.Header{"Delay-In": {"1h"}}}} {
			reply, err := shop.RequestMsg(m, patient)
			if err != nil || !bytes.Contains(reply.Data, []byte(`"stored":"`)) {
				t.Errorf("%s: %v, %v", m.Subject, reply, err)
			}
		}
		reply, err := shop.Request("delay.in.nonsense.orders.x", nil, patient)
		if err != nil || reply.Header.Get("Nats-Service-Error-Code") != "400" {
			t.Errorf("a refusal: %v, %v", reply, err)
		}
	})
	t.Run("+WPI, then +ACK with a result", func(t *testing.T) {
		s.order(shop, "delay.in.0s.orders.plain", "Delay-Reply-To", "results.orders.mine")
		m := eitherReceived(t, plain, other)
		for _, verb := range []string{"+WPI", "+ACK made"} {
			if reply, err := work.Request(m.Reply, []byte(verb), patient); err != nil || len(reply.Data) != 0 {
				t.Errorf("%s is answered %q, %v", verb, data(reply), err)
			}
		}
		if m := received(t, results); string(m.Data) != "made" {
			t.Errorf("result %q", m.Data)
		}
		if reply, err := work.Request(m.Reply, []byte("+WPI"), patient); err != nil || !strings.HasPrefix(string(reply.Data), "-ERR") {
			t.Errorf("a late +WPI is answered %q, %v", data(reply), err)
		}
	})
	t.Run("without waiting for answers", func(t *testing.T) {
		s.order(shop, "delay.in.0s.orders.plain", "Delay-Ack-Wait", "1s", "Delay-Reply-To", "results.orders.mine")
		m := eitherReceived(t, plain, other)
		if err := errors.Join(m.InProgress(), m.Respond([]byte("+ACK twice"))); err != nil {
			t.Fatal(err)
		}
		if m := received(t, results); string(m.Data) != "twice" {
			t.Errorf("result %q", m.Data)
		}
	})
	t.Run("one of a queue group gets a job", func(t *testing.T) {
		if n, _, err := plain.Pending(); err != nil || n > 0 {
			t.Errorf("%d more jobs, %v", n, err)
		}
		if n, _, err := other.Pending(); err != nil || n > 0 {
			t.Errorf("%d more jobs at the other worker, %v", n, err)
		}
	})
	t.Run("owned", func(t *testing.T) { ownedAcross(t, s, shop, work, results, log) })
	t.Run("nobody", func(t *testing.T) {
		s.order(shop, "delay.in.0s.orders.nobody", "Delay-Ack-Wait", "1h")
		s.awaitParked("orders.nobody")
		late := subscribed(t, work, "orders.nobody", "workers")
		if m := received(t, late); m.Header.Get("Delay-Attempt") != "1" {
			t.Errorf("attempt %s: those that reached nobody were charged", m.Header.Get("Delay-Attempt"))
		}
	})
	for _, line := range log.all() {
		if strings.Contains(strings.ToLower(line), "permission") {
			t.Error(line)
		}
	}
}

// ownedAcross has a job run by a worker of the library in another account.
func ownedAcross(t *testing.T, s *system, shop, work *nats.Conn, results *nats.Subscription, log *notes) {
	w, err := workers.New(work, workers.Config{Name: "w1", Subjects: []string{"orders.owned"}, Concurrency: 1, Logger: slog.New(slog.NewTextHandler(log, nil))},
		func(_ context.Context, j *workers.Job) error { j.SetResult([]byte("owned")); return nil })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	log.await(t, "that the worker is known", func(line string) bool { return strings.Contains(line, `msg="worker joined"`) })
	s.order(shop, "delay.in.0s.orders.owned", "Delay-Reply-To", "results.orders.mine")
	if m := received(t, results); string(m.Data) != "owned" {
		t.Errorf("result %q", m.Data)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// awaitParked waits until a bridge that the user bridge can ask knows that nobody
// takes jobs of target.
func (s *system) awaitParked(target string) {
	s.t.Helper()
	nc := s.user(newNotes(), "bridge", "change me", "bridge")
	s.eventually(target+" is parked", func(context.Context) (bool, error) {
		reply, err := nc.Request("delay.api.stats", nil, patient)
		return err == nil && bytes.Contains(reply.Data, []byte(`"target":"`+target+`"`)), err
	})
}

func data(m *nats.Msg) []byte {
	if m == nil {
		return nil
	}
	return m.Data
}

// eitherReceived returns the next message of several subscriptions.
func eitherReceived(t *testing.T, subs ...*nats.Subscription) *nats.Msg {
	t.Helper()
	end := time.Now().Add(patient)
	for time.Now().Before(end) {
		for _, sub := range subs {
			if m, err := sub.NextMsg(10 * time.Millisecond); err == nil {
				return m
			}
		}
	}
	t.Fatalf("nothing within %v", patient)
	return nil
}

// An operator's calls from another account tell the bridge who asks.
func TestWhoAsksFromAnotherAccount(t *testing.T) {
	t.Parallel()
	s, log := newAccounts(t, documented(t, "conf accounts"))
	shop := s.user(log, "shop", "change me", "orders")
	reply, err := shop.Request("delay.in.1h.orders.x", nil, patient)
	if err != nil {
		t.Fatal(err)
	}
	var ack struct{ ID string }
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(map[string]string{"id": ack.ID})
	if reply, err = shop.Request("delay.api.cancel.orders.x", body, patient); err != nil || !bytes.Contains(reply.Data, []byte(`"done"`)) {
		t.Fatalf("cancel: %s, %v", data(reply), err)
	}
	log.await(t, "that tells who asked", func(line string) bool { return strings.Contains(line, "cancel") && strings.Contains(line, "SHOP") })
}

// Workers that are a service of another account must be allowed several responses.
func TestWorkersAsAService(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, old, new string
		wait           string // for an acknowledgement
		completes      bool
	}{
		{"as documented", "", "", "1h", true},
		{"one response", "response: stream, ", "", "900ms", false},
		{"a threshold that is shorter than the work", `"1h"`, `"100ms"`, "900ms", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, log := newAccounts(t, strings.Replace(documented(t, "conf service"), c.old, c.new, 1))
			bridge := s.user(log, "bridge", "change me", "bridge")
			work := s.user(log, "w1", "change me", "orders")
			sub := subscribed(t, work, "orders.plain", "workers")
			results := subscribed(t, bridge, "results.mine", "")
			s.order(bridge, "delay.in.0s.orders.plain", "Delay-Reply-To", "results.mine", "Delay-Ack-Wait", c.wait)
			m := received(t, sub)
			if err := m.InProgress(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(400 * time.Millisecond) // the work
			if err := m.Respond([]byte("+ACK done")); err != nil {
				t.Fatal(err)
			}
			again := eitherReceived(t, results, sub)
			if completed := again.Subject == "results.mine"; completed != c.completes {
				t.Errorf("completed: %v, want %v", completed, c.completes)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		s, log := newAccounts(t, documented(t, "conf service"))
		s.order(s.user(log, "bridge", "change me", "bridge"), "delay.in.0s.orders.nobody", "Delay-Ack-Wait", "1h")
		s.awaitParked("orders.nobody")
	})
}

// What allow_responses must grant a worker follows from what it sends and how long it
// works.
func TestAllowResponses(t *testing.T) {
	t.Parallel()
	set := documentedSets(t)[answeringRole]
	limited := func(limits any) permissions { p := set; p.Responses = limits; return p }
	accts := account{"bridge": documentedSets(t)[bridgeRole], "all": all, "documented": set,
		"two":  limited(map[string]any{"max": 2, "expires": "10s"}),
		"one":  limited(map[string]any{"max": 1, "expires": "10s"}),
		"true": limited(true), "short": limited(map[string]any{"max": 10, "expires": "100ms"}),
	}
	s := &system{Checker: NewChecker(), t: t, nats: testnats.Start(t, testnats.Config(accounts(map[string]account{"A": accts})))}
	s.try(newNotes(), "b1", "bridge", "--store", "local", "--data-dir", "")(t)
	for _, c := range []struct {
		user      string
		reconnect bool
		completes bool
	}{
		{"documented", false, true}, {"two", false, true}, {"one", false, false}, {"true", false, false}, {"short", false, false},
		{"documented", true, false},
	} {
		name := c.user
		if c.reconnect {
			name += ", after a reconnect"
		}
		t.Run(name, func(t *testing.T) {
			s := &system{Checker: s.Checker, t: t, nats: s.nats}
			n := newNotes()
			target := "orders." + strings.NewReplacer(" ", "", ",", "").Replace(name)
			back := make(chan struct{}, 1)
			work, producer := s.user(n, c.user, c.user, "orders"), s.user(newNotes(), "all", "all", "all")
			work.SetReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
			sub, results := subscribed(t, work, target, "workers"), subscribed(t, producer, "_INBOX.all.result", "")
			s.order(producer, "delay.in.0s."+target, "Delay-Reply-To", "_INBOX.all.result", "Delay-Ack-Wait", "30s")
			m := received(t, sub)
			if c.reconnect {
				if err := work.ForceReconnect(); err != nil {
					t.Fatal(err)
				}
				<-back
			}
			if c.user == "short" {
				time.Sleep(150 * time.Millisecond) // the work
			}
			if err := errors.Join(m.InProgress(), m.Respond([]byte("+ACK done")), work.Flush()); err != nil {
				t.Fatal(err)
			}
			if c.completes {
				received(t, results)
				return
			}
			less := lacking{permitted: "delay.ack.*.*"}
			n.await(t, "that names the reply subject", less.names)
		})
	}
}
