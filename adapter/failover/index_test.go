package failover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// answer is what an index call is to answer about a job in some place.
type answer struct {
	state  job.State // of Get; empty: unavailable
	stored string
	result job.Result // of Cancel and Reschedule; empty: unavailable
}

var (
	unreachable = answer{}
	liveThere   = answer{job.Pending, job.StoredRedis, job.ResultDone}
	liveHere    = answer{job.Pending, job.StoredLocal, job.ResultDone}
	endedThere  = answer{job.Done, job.StoredRedis, job.ResultFinished}
	endedHere   = answer{job.Done, job.StoredLocal, job.ResultFinished}
)

// indexModes are what is known in each mode of jobs in all places.
var indexModes = []struct {
	mode job.Mode
	want map[string]answer
}{
	{job.ModeRedis, map[string]answer{
		"local": liveHere, "mirrored": liveThere, "redis": liveThere, "ended-here": endedHere, "ended-there": endedThere,
	}},
	{job.ModeLocal, map[string]answer{
		"local": liveHere, "mirrored": liveThere, "redis": unreachable, "ended-here": endedHere, "ended-there": unreachable,
	}},
	{job.ModeMigrating, map[string]answer{
		"local": liveHere, "mirrored": liveThere, "redis": liveThere, "ended-here": endedThere, "ended-there": endedThere,
	}},
}

// inMode makes jobs in all places and calls f in that mode, at a time when the
// local ones have not been merged.
func (s *scene) inMode(mode job.Mode, f func()) {
	s.Helper()
	s.one(mk("mirrored", 20*time.Second), job.StoredRedis)
	s.one(mk("redis", time.Hour), job.StoredRedis)
	s.one(mk("ended-there", 0), job.StoredRedis)
	s.mustSettle(s.claim(1)[0], job.Complete, 0)
	s.one(mk("ended-here", 0), job.StoredRedis)
	d := s.claim(1)[0]
	if mode == job.ModeRedis {
		merge := s.holdMerge()
		s.beforeNext("settle", func() error { return errLost })
		s.mustSettle(d, job.Complete, 0)
		s.beforeNext("put", func() error { return errLost })
		s.one(mk("local", time.Hour), job.StoredLocal)
		f()
		merge()
		s.settledDown()
		return
	}
	s.unplug()
	s.mustSettle(d, job.Complete, 0)
	s.one(mk("local", time.Hour), job.StoredLocal)
	if mode == job.ModeLocal {
		f()
		s.plug()
		s.settledDown()
		return
	}
	s.homecoming(s.beforeMigrating, f)
}

// beforeMigrating is beforeNext, but only for a call in mode migrating.
func (s *scene) beforeMigrating(kind string, f func() error) {
	s.beforeNext(kind, func() error {
		if s.store.Mode() == job.ModeMigrating {
			return f()
		}
		s.beforeMigrating(kind, f)
		return nil
	})
}

func TestGetInEachMode(t *testing.T) {
	for _, tc := range indexModes {
		t.Run(tc.mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.inMode(tc.mode, func() {
				for id, want := range tc.want {
					infos, err := s.store.Get(context.Background(), []string{id})
					if want == unreachable {
						if !errors.Is(err, job.ErrUnavailable) {
							t.Errorf("get %s: %+v, %v, want ErrUnavailable", id, infos, err)
						}
					} else if err != nil || infos[0].ID != id || infos[0].State != want.state || infos[0].Stored != want.stored {
						t.Errorf("get %s: %+v, %v, want %+v", id, infos, err, want)
					}
				}
			})
		})
	}
}

// TestChangeInEachMode cancels or moves jobs, and looks at what Redis makes of it
// in the end.
func TestChangeInEachMode(t *testing.T) {
	due := now().Add(2 * time.Hour)
	for _, tc := range indexModes {
		t.Run("cancel/"+tc.mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.testChange(tc.mode, tc.want, job.Cancelled, func(id string) ([]job.Change, error) {
				return s.store.Cancel(context.Background(), now(), job.ByIDs(id))
			})
		})
		t.Run("reschedule/"+tc.mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.testChange(tc.mode, tc.want, job.Pending, func(id string) ([]job.Change, error) {
				return s.store.Reschedule(context.Background(), []job.Reschedule{{ID: id, Due: due}})
			})
			for id, want := range tc.want {
				if i := s.get(id); want.result == job.ResultDone && i.Next != due {
					t.Errorf("%s is due at %v, want %v", id, i.Next.Time(), due.Time())
				}
			}
		})
	}
}

// testChange changes each job in that mode. Those that could be changed are in
// that state in the end, those that could not are as they were.
func (s *scene) testChange(mode job.Mode, want map[string]answer, state job.State, change func(id string) ([]job.Change, error)) {
	s.Helper()
	s.inMode(mode, func() {
		for id, want := range want {
			c, err := change(id)
			if want == unreachable {
				if !errors.Is(err, job.ErrUnavailable) {
					s.Errorf("%s: %+v, %v, want ErrUnavailable", id, c, err)
				}
			} else if err != nil || c[0].ID != id || c[0].Result != want.result {
				s.Errorf("%s: %+v, %v, want %s", id, c, err, want.result)
			}
		}
	})
	for id, was := range want {
		switch {
		case id == "ended-here" || id == "ended-there":
			s.want(id, job.Done, 1, job.StoredRedis)
		case was == unreachable:
			s.want(id, job.Pending, 0, job.StoredRedis)
		default:
			s.want(id, state, 0, job.StoredRedis)
		}
	}
	s.silentThroughout()
}

// TestListOfBothStores pages through jobs that lie in both stores in turns: none
// is skipped, none repeated.
func TestListOfBothStores(t *testing.T) {
	const jobs = 23
	s := newScene(t)
	merge := s.holdMerge()
	var want []string
	for i := range jobs {
		j := mk(fmt.Sprintf("j-%02d", i), time.Hour)
		j.Due = j.Due.Add(time.Duration(i/2) * time.Second) // ties, too
		stored := job.StoredRedis
		if i%3 == 1 || i > 18 {
			s.beforeNext("put", func() error { return errLost })
			stored = job.StoredLocal
		}
		s.one(j, stored)
		want = append(want, j.ID)
		s.eventually("Redis is asked again", s.answers)
	}
	for limit := 1; limit <= jobs+1; limit++ {
		if got := s.list(limit); !slices.Equal(got, want) {
			t.Errorf("pages of %d: %q, want %q", limit, got, want)
		}
	}
	s.short = 2
	if got := s.list(10); !slices.Equal(got, want) {
		t.Errorf("with shorter ones of Redis: %q, want %q", got, want)
	}
	merge()
	s.settledDown()
	if got := s.list(4); !slices.Equal(got, want) {
		t.Errorf("merged: %q, want %q", got, want)
	}
}

// answers makes a call of the primary, after which puts go there again.
func (s *scene) answers() bool {
	_, err := s.store.Waiting(context.Background())
	return err == nil
}

// list returns the ids of all pending jobs, read in pages of that size.
func (s *scene) list(limit int) (ids []string) {
	s.Helper()
	q := job.Query{Limit: limit}
	for range 100 {
		page, err := s.store.List(context.Background(), q)
		if err != nil {
			s.Fatalf("List: %v", err)
		}
		for i := range page.Jobs {
			ids = append(ids, page.Jobs[i].ID)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return ids
		}
	}
	s.Fatal("pages without end")
	return nil
}
