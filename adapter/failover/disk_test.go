package failover_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// faults are the ways in which a disk can fail, and what a put in local mode is
// answered then.
var faults = []struct {
	name   string
	answer error
	inject func(*crashfs.FS)
}{
	{"poisoned", job.ErrUnavailable, func(fs *crashfs.FS) {
		fs.Inject(func(op crashfs.Op) error {
			if op.Kind == "sync" {
				return syscall.EIO
			}
			return nil
		})
	}},
	{"full", job.ErrFull, func(fs *crashfs.FS) { fs.SetSpace(1) }},
}

func onDisk(fs *crashfs.FS) func(*rigOptions) {
	return func(o *rigOptions) { o.local.FS, o.badDisk = fs, true }
}

// large is a job for which the room that a log has reserved is not enough.
func large() job.Job {
	j := mk("", time.Hour)
	j.Payload = make([]byte, 2<<20)
	return j
}

// refused puts a job and checks that it is refused as it should be.
func (s *scene) refused(want error) {
	s.Helper()
	res, err := s.store.Put(context.Background(), []job.Job{large()})
	if err == nil {
		err = res[0].Err
	}
	if !errors.Is(err, want) {
		s.Errorf("put: %v, want %v", err, want)
	}
}

// TestDiskFailsBesideRedis: without a disk to turn to, Redis has all the time that
// it takes, and is not turned away from.
func TestDiskFailsBesideRedis(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			fs := crashfs.New(1)
			s := newScene(t, onDisk(fs))
			limits := onStage
			limits.HandOver, limits.MaxTimeouts, limits.MinCalls = 10*time.Millisecond, 2, 4
			if err := s.store.Reload(limits); err != nil {
				t.Fatal(err)
			}
			fault.inject(fs)
			if res, err := s.store.PutLocal(context.Background(), []job.Job{large()}); err == nil && res[0].Err == nil {
				t.Fatal("the disk took a job")
			}
			slow := func() error { time.Sleep(50 * time.Millisecond); return nil } // what Redis takes
			s.beforeNext("put", slow)
			s.one(mk("j", 0), job.StoredRedis)
			d := s.claim(1)[0]
			s.beforeNext("settle", slow)
			s.mustSettle(d, job.Complete, 0)
			for range 8 {
				s.beforeNext("put", func() error { return context.DeadlineExceeded })
				s.refused(fault.answer)
			}
			last := make(chan struct{})
			for range 3 {
				s.beforeNext("probe", func() error { return errLost })
			}
			s.beforeNext("probe", func() error { close(last); return nil })
			s.await("the probes", last)
			if m := s.store.Mode(); m == job.ModeLocal {
				t.Error("turned from Redis, with no disk to turn to")
			}
			s.one(mk("k", time.Hour), job.StoredRedis)
		})
	}
}

// TestDiskFailsInAnOutage: then nothing takes jobs, which is said at once; with
// Redis, or with room on the disk, all goes on.
func TestDiskFailsInAnOutage(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			fs := crashfs.New(1)
			s := newScene(t, onDisk(fs))
			s.unplug()
			fault.inject(fs)
			for range 3 {
				s.refused(fault.answer)
			}
			s.setAway(false)
			s.eventually("Redis is used again", func() bool { return s.store.Mode() != job.ModeLocal })
			s.one(mk("j", time.Hour), job.StoredRedis)
		})
	}
}

func TestRoomAgainInAnOutage(t *testing.T) {
	fs := crashfs.New(1)
	s := newScene(t, onDisk(fs))
	s.one(mk("redis", 20*time.Second), job.StoredRedis)
	s.unplug()
	s.one(mk("local", 20*time.Second), job.StoredLocal)
	fs.SetSpace(1)
	s.refused(job.ErrFull)
	if c, err := s.store.Claim(context.Background(), job.ClaimRequest{Now: now(), Until: now().Add(time.Minute), Max: 9}); len(c.Deliveries) > 0 || !errors.Is(err, job.ErrFull) {
		t.Errorf("claim without room for the leases: %+v, %v", c, err)
	}
	fs.SetSpace(0)
	s.eventually("the log goes on", func() bool { return s.local.Usage().LogErr == nil })
	ds := s.claimUntil(30 * time.Second)
	if len(ds) != 2 {
		t.Fatalf("delivered %+v, want both jobs", ds)
	}
	s.plug()
	for _, d := range ds {
		s.mustSettle(d, job.Complete, 0)
		s.want(d.ID, job.Done, 1, job.StoredRedis)
	}
	s.silentThroughout()
}

// TestNeitherStore: the answer names what is wrong with both.
func TestNeitherStore(t *testing.T) {
	fs := crashfs.New(1)
	s := newScene(t, onDisk(fs))
	s.unplug()
	faults[0].inject(fs)
	_, err := s.store.Put(context.Background(), []job.Job{mk("", 0)})
	if err == nil || !strings.Contains(err.Error(), "neither Redis") || !strings.Contains(err.Error(), "restart") {
		t.Errorf("put: %v", err)
	}
}
