package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// An id that was cancelled names another job when it is used again. A worker
// that still has the first one cannot complete the second by mistake, neither
// while it waits nor while it runs.
func TestReusedIDRefusesTheFirstWorker(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const id = "order-17"
		s := newSystem(t, kind)
		b := s.bridge("b1")
		nc := s.client()
		got := make(chan *nats.Msg, 10)
		w := s.worker("reuse.work", func(m *nats.Msg, d Delivery) {
			if d.ID != id {
				done(m, d)
				return
			}
			got <- m
		})
		// A target where a worker has settled something is known to have one.
		s.accept(nc, s.in(0, "reuse.work"))
		s.awaitEmpty()

		first := s.in(0, "reuse.work")
		for name, value := range map[string]string{"Nats-Msg-Id": id, "Delay-Ack-Wait": "200ms", "Delay-Backoff": "1h"} {
			first.Header.Set(name, value)
		}
		s.accept(nc, first)
		old := s.message(got)
		s.awaitState(id, job.Pending)
		changes, err := s.look.Cancel(context.Background(), job.At(time.Now()), job.ByIDs(id))
		if err != nil || changes[0].Result != job.ResultDone {
			t.Fatalf("cancel: %+v, %v", changes, err)
		}
		s.Ended(first)

		second := s.in(300*time.Millisecond, "reuse.work")
		second.Header.Set("Nats-Msg-Id", id)
		s.accept(nc, second)
		s.wantStale(nc, old, "while the second job waits")
		now := s.message(got)
		s.wantStale(nc, old, "while the second job runs")
		if body, err := s.settle(nc, now, "+ACK"); err != nil || body != "" {
			t.Errorf("completion of the second job: %q, %v", body, err)
		}
		s.awaitState(id, job.Done)
		s.verify(Once, []*nats.Conn{w}, b)
	})
}

func (s *system) message(ch <-chan *nats.Msg) *nats.Msg {
	s.t.Helper()
	select {
	case m := <-ch:
		return m
	case <-time.After(patient):
		s.t.Fatalf("no delivery within %v", patient)
		return nil
	}
}

func (s *system) awaitState(id string, want job.State) {
	s.t.Helper()
	s.eventually("job "+id+" is "+string(want), func(ctx context.Context) (bool, error) {
		infos, err := s.look.Get(ctx, []string{id})
		return err == nil && infos[0].State == want, err
	})
}

// settle sends a verb, waits for the answer, and records a confirmed
// completion.
func (s *system) settle(nc *nats.Conn, m *nats.Msg, verb string) (string, error) {
	return s.settleWithin(nc, m, verb, patient)
}

func (s *system) settleWithin(nc *nats.Conn, m *nats.Msg, verb string, d time.Duration) (string, error) {
	reply, err := nc.Request(m.Reply, []byte(verb), d)
	if err != nil {
		return "", err
	}
	if len(reply.Data) == 0 && (verb == "" || verb == "+ACK") {
		s.Confirmed(m)
	}
	return string(reply.Data), nil
}

func (s *system) wantStale(nc *nats.Conn, m *nats.Msg, when string) {
	s.t.Helper()
	for _, verb := range []string{"", "-NAK", "+WPI", "+TERM"} {
		if body, err := s.settle(nc, m, verb); err != nil || !strings.HasPrefix(body, `-ERR {"code":409,"err_code":20409`) {
			s.t.Errorf("%s the late %q of the first is answered %q, %v; want 409", when, verb, body, err)
		}
	}
}

// A worker that is a NATS micro service refuses a job with req.Error, whose
// body is empty like that of a completion, and completes it with req.Respond.
func TestMicroServiceRefusesAndCompletes(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const jobs = 20
		s := newSystem(t, kind)
		b := s.bridge("b1")
		nc := s.client()
		svc, err := micro.AddService(nc, micro.Config{Name: "worker", Version: "1.0.0"})
		if err != nil {
			t.Fatal(err)
		}
		err = svc.AddEndpoint("work", micro.HandlerFunc(func(r micro.Request) {
			m := &nats.Msg{Subject: r.Subject(), Header: nats.Header(r.Headers()), Data: r.Data()}
			if d := s.Delivered(m); d.Attempt < 3 {
				_ = r.Error("500", "try again", nil) // a connection that is gone shows elsewhere
				return
			}
			_ = r.Respond(nil)
		}), micro.WithEndpointSubject("micro.work"))
		if err != nil {
			t.Fatal(err)
		}
		s.flood(jobs, func(int) *nats.Msg {
			m := s.in(0, "micro.work")
			m.Header.Set("Delay-Backoff", "50ms")
			return m
		})
		s.awaitCounts("three attempts of each job", func(c Counts) bool { return c.Deliveries == 3*jobs })
		s.awaitEmpty()
		if err := svc.Stop(); err != nil {
			t.Error(err)
		}
		s.verify(Again, []*nats.Conn{nc}, b)
		if c := s.Counts(); c.Deliveries != 3*jobs {
			t.Errorf("%d deliveries of %d jobs, want three of each", c.Deliveries, jobs)
		}
	})
}
