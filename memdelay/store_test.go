package memdelay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
	"github.com/delaybridge/delaybridge/memdelay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			s := memdelay.New(memdelay.Options{})
			t.Cleanup(func() { s.Close() })
			return s
		},
		Stored: job.StoredMemory,
	}.Run(t)
}

func TestFull(t *testing.T) {
	ctx := context.Background()
	s := memdelay.New(memdelay.Options{MaxJobs: 3})
	put := func(id string, replace bool) job.PutResult {
		t.Helper()
		res, err := s.Put(ctx, []job.Job{{ID: id, Target: "t", Due: 1, AckWait: time.Minute, Replace: replace}})
		if err != nil {
			t.Fatal(err)
		}
		return res[0]
	}
	for _, id := range []string{"a", "b", "c"} {
		if r := put(id, false); r.Err != nil {
			t.Fatalf("Put of %q: %v", id, r.Err)
		}
	}
	if r := put("", false); !errors.Is(r.Err, job.ErrFull) {
		t.Errorf("Put beyond the limit: %+v, want ErrFull", r)
	}
	if r := put("d", true); !errors.Is(r.Err, job.ErrFull) {
		t.Errorf("Put beyond the limit: %+v, want ErrFull", r)
	}
	if r := put("a", false); r.Err != nil || !r.Duplicate {
		t.Errorf("Put of a duplicate when full: %+v", r)
	}
	if r := put("a", true); r.Err != nil || r.Duplicate {
		t.Errorf("replacing when full: %+v", r)
	}
	c, err := s.Claim(ctx, job.ClaimRequest{Now: 1, Until: 1, Max: 1})
	if err != nil || len(c.Deliveries) != 1 {
		t.Fatalf("Claim: %+v, %v", c, err)
	}
	if r := put("d", false); !errors.Is(r.Err, job.ErrFull) {
		t.Errorf("Put beside a running job: %+v, want ErrFull", r)
	}
	if _, err := s.Settle(ctx, 1, []job.Settlement{{Ref: c.Deliveries[0].Ref(), Outcome: job.Complete}}); err != nil {
		t.Fatal(err)
	}
	if r := put("d", false); r.Err != nil {
		t.Errorf("Put after a job ended: %+v", r)
	}
}

// TestCallsThatMustFail makes every call after Close, and with a context that
// has ended.
func TestCallsThatMustFail(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	open, closed := memdelay.New(memdelay.Options{}), memdelay.New(memdelay.Options{})
	closed.Close()
	for name, call := range map[string]func(context.Context, *memdelay.Store) error{
		"Put": func(ctx context.Context, s *memdelay.Store) error { _, err := s.Put(ctx, nil); return err },
		"Claim": func(ctx context.Context, s *memdelay.Store) error {
			_, err := s.Claim(ctx, job.ClaimRequest{})
			return err
		},
		"Expired":    func(ctx context.Context, s *memdelay.Store) error { _, _, err := s.Expired(ctx, 1, 1); return err },
		"Settle":     func(ctx context.Context, s *memdelay.Store) error { _, err := s.Settle(ctx, 1, nil); return err },
		"Waiting":    func(ctx context.Context, s *memdelay.Store) error { _, err := s.Waiting(ctx); return err },
		"Get":        func(ctx context.Context, s *memdelay.Store) error { _, err := s.Get(ctx, nil); return err },
		"List":       func(ctx context.Context, s *memdelay.Store) error { _, err := s.List(ctx, job.Query{}); return err },
		"Cancel":     func(ctx context.Context, s *memdelay.Store) error { _, err := s.Cancel(ctx, 1, nil); return err },
		"Reschedule": func(ctx context.Context, s *memdelay.Store) error { _, err := s.Reschedule(ctx, nil); return err },
	} {
		if err := call(context.Background(), closed); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("%s after Close: error %v, want ErrUnavailable", name, err)
		}
		if err := call(ended, open); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: error %v", name, err)
		}
		if err := call(context.Background(), open); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnknownOutcomeChangesNothing(t *testing.T) {
	s := memdelay.New(memdelay.Options{})
	if _, err := s.Put(context.Background(), []job.Job{{ID: "a", Target: "t", Due: 1, AckWait: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(context.Background(), job.ClaimRequest{Now: 1, Until: 1, Max: 1})
	if err != nil || len(c.Deliveries) != 1 {
		t.Fatalf("Claim: %+v, %v", c, err)
	}
	ref := c.Deliveries[0].Ref()
	if res, err := s.Settle(context.Background(), 1, []job.Settlement{{Ref: ref}, {Ref: ref, Outcome: 99}}); err == nil {
		t.Errorf("an unknown outcome was accepted: %v", res)
	}
	if i, err := s.Get(context.Background(), []string{"a"}); err != nil || i[0].State != job.Running {
		t.Errorf("the job is %+v, %v, want running", i, err)
	}
}

// TestListAmongChanges lists more jobs than List looks at under one lock,
// while others come and go.
func TestListAmongChanges(t *testing.T) {
	const n = 40_000
	ctx := context.Background()
	s := memdelay.New(memdelay.Options{})
	put := func(id string, due job.Time) {
		if _, err := s.Put(ctx, []job.Job{{ID: id, Target: "t", Due: due, AckWait: time.Minute}}); err != nil {
			t.Error(err)
		}
	}
	for i := range n {
		put(fmt.Sprintf("stays%05d", i), job.Time(1+i*7919%n/100))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			put(fmt.Sprintf("other%05d", i), job.Time(1+i%(n/100)))
			if _, err := s.Cancel(ctx, 1, job.ByIDs(fmt.Sprintf("other%05d", i-50))); err != nil {
				t.Error(err)
			}
		}
	}()
	seen := map[string]bool{}
	q := job.Query{Limit: 1000}
	for done := false; !done; done = q.Cursor == "" {
		p, err := s.List(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range p.Jobs {
			if seen[i.ID] {
				t.Errorf("%q is listed twice", i.ID)
			}
			seen[i.ID] = strings.HasPrefix(i.ID, "stays")
		}
		q.Cursor = p.Cursor
	}
	close(stop)
	<-stopped
	for i := range n {
		if id := fmt.Sprintf("stays%05d", i); !seen[id] {
			t.Fatalf("%q is not listed", id)
		}
	}
}
