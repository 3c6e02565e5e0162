package memdelay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// setAsideMany puts n jobs that are due one after the other and sets them aside.
func setAsideMany(t *testing.T, s *memdelay.Store, n int) {
	t.Helper()
	ctx := context.Background()
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = job.Job{ID: fmt.Sprint("job", i), Target: "t", Due: job.Time(i + 1), AckWait: time.Minute}
	}
	if _, err := s.Put(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(ctx, job.ClaimRequest{Now: 1000, Until: 1000, Max: 1, Blocked: []string{"t"}})
	if err != nil || c.SetAside != n {
		t.Fatalf("%d set aside of %d, error %v", c.SetAside, n, err)
	}
}

func slot(owner string, free int) job.Slot { return job.Slot{Owner: owner, Free: free} }

// TestSlotsInTurn checks the very order in which owners get deliveries.
func TestSlotsInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		max   int
		slots []job.Slot
		want  []string
	}{
		"all":       {10, []job.Slot{slot("a", 3), slot("b", 1), slot("c", 2)}, []string{"a", "b", "c", "a", "c", "a"}},
		"few":       {4, []job.Slot{slot("a", 3), slot("b", 1), slot("c", 2)}, []string{"a", "b", "c", "a"}},
		"full ones": {10, []job.Slot{slot("a", 0), slot("b", 1), slot("c", -1), slot("d", 2)}, []string{"b", "d", "d"}},
		"none":      {10, []job.Slot{slot("a", 0)}, nil},
		"no slots":  {2, nil, []string{"bridge", "bridge"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := memdelay.New(memdelay.Options{})
			setAsideMany(t, s, 8)
			given := slices.Clone(c.slots)
			got, err := s.Claim(context.Background(), job.ClaimRequest{Now: 1000, Until: 1000, Max: c.max, Owner: "bridge", Target: "t", Slots: c.slots})
			if err != nil {
				t.Fatal(err)
			}
			var owners []string
			for i, d := range got.Deliveries {
				owners = append(owners, d.Owner)
				if d.ID != fmt.Sprint("job", i) {
					t.Errorf("delivery %d is of %q", i, d.ID)
				}
			}
			if !slices.Equal(owners, c.want) || got.NextDue != job.Time(len(c.want)+1) {
				t.Errorf("given to %q, next due %d; want %q, %d", owners, got.NextDue, c.want, len(c.want)+1)
			}
			if !slices.Equal(given, c.slots) {
				t.Errorf("the claim changed the caller's slots to %v", c.slots)
			}
		})
	}
}

// TestOwnersSurvive kills a store after deliveries were given to workers: it
// knows them from the log, and again from a snapshot.
func TestOwnersSurvive(t *testing.T) {
	fs := crashfs.New(1)
	o := memdelay.Options{FS: fs, SnapshotBytes: 1}
	s, err := memdelay.Open("/store", o)
	if err != nil {
		t.Fatal(err)
	}
	setAsideMany(t, s, 4)
	ctx := context.Background()
	c, err := s.Claim(ctx, job.ClaimRequest{Now: 1000, Until: 1000, Max: 4, Target: "t", Slots: []job.Slot{slot("b1/w1", 1), slot("b1/w2", 1), slot("b1", 2)}})
	if err != nil || len(c.Deliveries) != 4 {
		t.Fatalf("claimed %d, error %v", len(c.Deliveries), err)
	}
	own := []job.Settlement{
		{Ref: c.Deliveries[2].Ref(), Outcome: job.Own, At: 5e9, Owner: "b1/w3"},
		{Ref: c.Deliveries[0].Ref(), Outcome: job.Own, At: 5e9, Owner: "b2/w1"},
		{Ref: c.Deliveries[1].Ref(), Outcome: job.Own, At: 5e9, Owner: "b1/w1"},
	}
	res, err := s.Settle(ctx, 1000, own)
	if want := []job.SettleResult{job.Settled, job.Settled, job.Taken}; err != nil || !slices.Equal(res, want) {
		t.Fatalf("results %v, error %v, want %v", res, err, want)
	}
	for range 3 {
		fs.Crash()
		s.Close() // fails: nothing can be written any more
		fs = fs.Restart()
		o.FS = fs
		if s, err = memdelay.Open("/store", o); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"b2/w1", "b1/w2", "b1/w3", "b1"} {
			infos, err := s.Get(ctx, []string{fmt.Sprint("job", i)})
			if err != nil || infos[0].Owner != want || infos[0].Ref() != c.Deliveries[i].Ref() {
				t.Errorf("job%d: %+v owned by %q, error %v; want %+v, %q", i, infos[0].Ref(), infos[0].Owner, err, c.Deliveries[i].Ref(), want)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
