package memdelay_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// TestCrashWhileBusy crashes while several callers and the compaction are at
// work: whatever a snapshot caught of calls that were not confirmed yet, a job
// that was confirmed is there, or known as cancelled if that was asked.
func TestCrashWhileBusy(t *testing.T) {
	seeds := uint64(60)
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		seeds = 5000
	}
	for seed := range seeds {
		fs := crashfs.New(seed)
		o := memdelay.Options{FS: fs, SnapshotBytes: 1, SegmentBytes: 4 << 10}
		s, err := memdelay.Open("/store", o)
		if err != nil {
			t.Fatal(err)
		}
		fs.CrashAt(fs.Ops() + 1 + rand.New(rand.NewPCG(seed, 1)).IntN(400))
		var wg sync.WaitGroup
		var known [4]map[string]string // what each caller was told of its jobs
		for k := range known {
			known[k] = map[string]string{}
			wg.Go(func() { busy(s, k, known[k]) })
		}
		wg.Wait()
		s.Close() // fails: nothing can be written any more
		o.FS = fs.Restart()
		if s, err = memdelay.Open("/store", o); err != nil {
			t.Fatalf("seed %d: Open: %v", seed, err)
		}
		for k := range known {
			for id, want := range known[k] {
				got := must(s.Get(ctx, []string{id}))[0].State
				if got != job.Cancelled && (want == "cancelled" || got != job.Pending) {
					t.Errorf("seed %d: job %s is %q, last known: %s", seed, id, got, want)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// busy puts jobs and cancels every other one until that fails, and notes what it
// was told.
func busy(s *memdelay.Store, caller int, known map[string]string) {
	for i := range 500 {
		id := fmt.Sprint(caller, "-", i)
		if _, err := s.Put(ctx, []job.Job{simple(id, 1)}); err != nil {
			return
		}
		known[id] = "pending"
		if i%2 == 0 {
			known[id] = "being cancelled"
			if _, err := s.Cancel(ctx, 1, job.ByIDs(id)); err != nil {
				return
			}
			known[id] = "cancelled"
		}
	}
}

// heldFS holds up the syncs of the log from when a snapshot is begun until a
// moment after it is written.
type heldFS struct {
	*crashfs.FS
	once, release sync.Once
	begun         func()
	held          chan struct{} // closed: syncs go on
	early         chan string   // what happened too early
	mu            sync.Mutex
	on            bool
}

func (f *heldFS) holding() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on
}

func (f *heldFS) set(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = on
}

func (f *heldFS) Create(path string) (wal.File, error) {
	file, err := f.FS.Create(path)
	return &heldFile{file, f}, err
}

func (f *heldFS) Map(path string, size int64) (wal.Mapping, error) {
	f.once.Do(func() {
		f.set(true)
		f.begun()
	})
	return f.FS.Map(path, size)
}

func (f *heldFS) OpenWrite(path string) (wal.File, error) {
	f.release.Do(func() {
		time.AfterFunc(20*time.Millisecond, func() {
			f.set(false)
			close(f.held)
		})
	})
	return f.FS.OpenWrite(path)
}

func (f *heldFS) Rename(from, to string) error {
	if f.holding() {
		f.early <- to
	}
	return f.FS.Rename(from, to)
}

type heldFile struct {
	wal.File
	fs *heldFS
}

func (f *heldFile) Sync() error {
	if f.fs.holding() {
		<-f.fs.held
	}
	return f.File.Sync()
}

// TestSnapshotWaitsForTheLog: what a snapshot caught of a call must be in the log
// before it counts, or a crash would leave half of that call's effects.
func TestSnapshotWaitsForTheLog(t *testing.T) {
	fs := &heldFS{FS: crashfs.New(1), held: make(chan struct{}), early: make(chan string, 1)}
	ready, cancelled := make(chan *memdelay.Store, 1), make(chan error, 1)
	fs.begun = func() {
		s := <-ready
		go func() {
			_, err := s.Cancel(ctx, 1, job.ByIDs("a"))
			cancelled <- err
		}()
		for must(s.Get(ctx, []string{"a"}))[0].State != job.Cancelled {
			runtime.Gosched()
		}
	}
	s, err := memdelay.Open("/store", memdelay.Options{FS: fs, SnapshotBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustPut(t, s, simple("a", 1))
	ready <- s
	select {
	case err := <-cancelled:
		if err != nil {
			t.Error(err)
		}
	case name := <-fs.early:
		t.Errorf("%s is there before the log", name)
	}
}
