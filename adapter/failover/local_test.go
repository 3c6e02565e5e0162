package failover_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// TestLocalIndex asks for what the disk alone holds, in each mode.
func TestLocalIndex(t *testing.T) {
	ctx := context.Background()
	for _, mode := range []job.Mode{job.ModeRedis, job.ModeLocal, job.ModeMigrating} {
		t.Run(mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.inMode(mode, func() {
				local := s.store.Local()
				infos, err := local.Get(ctx, []string{"local", "redis"})
				if err != nil || infos[0].State != job.Pending || infos[0].Stored != job.StoredLocal || infos[1].State != "" {
					t.Errorf("Get: %+v, %v", infos, err)
				}
				page, err := local.List(ctx, job.Query{Limit: 10})
				if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != "local" {
					t.Errorf("List: %+v, %v", page, err)
				}
				if c, err := local.Count(ctx); err != nil || c.Pending != 1 {
					t.Errorf("Count: %+v, %v", c, err)
				}
				moved, err := local.Reschedule(ctx, []job.Reschedule{{ID: "redis", Due: now().Add(time.Hour)}, {ID: "local", Due: now().Add(2 * time.Hour)}})
				if err != nil || moved[0] != (job.Change{ID: "redis", Result: job.ResultUnknown}) || moved[1].Result != job.ResultDone {
					t.Errorf("Reschedule: %+v, %v", moved, err)
				}
				gone, err := local.Cancel(ctx, now(), job.ByIDs("redis", "local"))
				if err != nil || gone[0] != (job.Change{ID: "redis", Result: job.ResultUnknown}) || gone[1].Result != job.ResultDone {
					t.Errorf("Cancel: %+v, %v", gone, err)
				}
			})
		})
	}
}

// TestCountInEachMode counts the jobs of both stores, or says that it cannot.
func TestCountInEachMode(t *testing.T) {
	for mode, want := range map[job.Mode]int{job.ModeRedis: 3, job.ModeMigrating: 3, job.ModeLocal: -1} {
		t.Run(mode.String(), func(t *testing.T) {
			s := newScene(t)
			s.inMode(mode, func() {
				c, err := s.store.Count(context.Background())
				switch {
				case want < 0 && !errors.Is(err, job.ErrUnavailable):
					t.Errorf("%+v, %v, want ErrUnavailable", c, err)
				case want >= 0 && (err != nil || c.Pending != want):
					t.Errorf("%+v, %v, want %d pending", c, err, want)
				}
			})
		})
	}
}
