package memdelay_test

import (
	"context"
	"sync"
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// open opens a durable store that is closed when the test ends.
func open(t testing.TB, dir string, o memdelay.Options) *memdelay.Store {
	t.Helper()
	s, err := memdelay.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformanceDurable(t *testing.T) {
	jobtest.Suite{
		Open:   func(t *testing.T) job.Store { return open(t, t.TempDir(), memdelay.Options{SnapshotBytes: 64 << 10}) },
		Stored: job.StoredLocal,
	}.Run(t)
}

// restarting is a durable store that is closed and opened again before each of
// the first forty calls.
type restarting struct {
	t     *testing.T
	o     memdelay.Options
	mu    sync.RWMutex
	s     *memdelay.Store
	calls int
}

// with makes a call.
func (r *restarting) with(call func(s *memdelay.Store)) {
	r.t.Helper()
	r.mu.Lock()
	if r.calls++; r.calls <= 40 {
		if err := r.s.Close(); err != nil {
			r.t.Errorf("Close: %v", err)
		}
		s, err := memdelay.Open("/store", r.o)
		if err != nil {
			r.t.Errorf("Open: %v", err)
		} else {
			r.s = s
		}
	}
	r.mu.Unlock()
	r.mu.RLock()
	defer r.mu.RUnlock()
	call(r.s)
}

func (r *restarting) Put(ctx context.Context, jobs []job.Job) (res []job.PutResult, err error) {
	r.with(func(s *memdelay.Store) { res, err = s.Put(ctx, jobs) })
	return
}

func (r *restarting) Claim(ctx context.Context, q job.ClaimRequest) (c job.Claimed, err error) {
	r.with(func(s *memdelay.Store) { c, err = s.Claim(ctx, q) })
	return
}

func (r *restarting) Expired(ctx context.Context, now job.Time, limit int) (ds []job.Delivery, next job.Time, err error) {
	r.with(func(s *memdelay.Store) { ds, next, err = s.Expired(ctx, now, limit) })
	return
}

func (r *restarting) Settle(ctx context.Context, now job.Time, list []job.Settlement) (res []job.SettleResult, err error) {
	r.with(func(s *memdelay.Store) { res, err = s.Settle(ctx, now, list) })
	return
}

func (r *restarting) Waiting(ctx context.Context) (targets []string, err error) {
	r.with(func(s *memdelay.Store) { targets, err = s.Waiting(ctx) })
	return
}

func (r *restarting) Prune(ctx context.Context, before job.Time, limit int) (n int, err error) {
	r.with(func(s *memdelay.Store) { n, err = s.Prune(ctx, before, limit) })
	return
}

func (r *restarting) Get(ctx context.Context, ids []string) (infos []job.Info, err error) {
	r.with(func(s *memdelay.Store) { infos, err = s.Get(ctx, ids) })
	return
}

func (r *restarting) List(ctx context.Context, q job.Query) (p job.Page, err error) {
	r.with(func(s *memdelay.Store) { p, err = s.List(ctx, q) })
	return
}

func (r *restarting) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) (res []job.Change, err error) {
	r.with(func(s *memdelay.Store) { res, err = s.Cancel(ctx, now, list) })
	return
}

func (r *restarting) Reschedule(ctx context.Context, list []job.Reschedule) (res []job.Change, err error) {
	r.with(func(s *memdelay.Store) { res, err = s.Reschedule(ctx, list) })
	return
}

func (r *restarting) Count(ctx context.Context) (c job.Counts, err error) {
	r.with(func(s *memdelay.Store) { c, err = s.Count(ctx) })
	return
}

func (r *restarting) Close() error { return r.s.Close() }

func TestConformanceRestarting(t *testing.T) {
	for name, snapshotBytes := range map[string]int64{"from the log": 0, "from snapshots": 1} {
		t.Run(name, func(t *testing.T) {
			jobtest.Suite{
				Open: func(t *testing.T) job.Store {
					r := &restarting{t: t, o: memdelay.Options{SnapshotBytes: snapshotBytes, SegmentBytes: 64 << 10, FS: crashfs.New(1)}}
					var err error
					if r.s, err = memdelay.Open("/store", r.o); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						if err := r.Close(); err != nil {
							t.Error(err)
						}
					})
					return r
				},
				Stored: job.StoredLocal,
			}.Run(t)
		})
	}
}
