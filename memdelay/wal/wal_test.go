package wal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// open opens a log and returns the ids that it replays.
func open(t testing.TB, dir string, o wal.Options, from uint64) (*wal.Log, []string) {
	t.Helper()
	l, ids, err := tryOpen(dir, o, from)
	if err != nil {
		t.Fatal(err)
	}
	return l, ids
}

func tryOpen(dir string, o wal.Options, from uint64) (*wal.Log, []string, error) {
	var ids []string
	l, err := wal.Open(dir, o, from, func(r *wal.Record) error { ids = append(ids, r.ID); return nil })
	return l, ids, err
}

// put appends records with the ids from..to-1, each in its own commit.
func put(t testing.TB, l *wal.Log, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := l.Wait(t.Context(), l.Append(rec(i))); err != nil {
			t.Fatal(err)
		}
	}
}

func rec(i int) wal.Record {
	return wal.Record{ID: fmt.Sprint(i), Due: int64(i), State: wal.State(1 + i%5), Data: []byte(strings.Repeat("x", i%40))}
}

func wantIDs(t testing.TB, got []string, from, to int) {
	t.Helper()
	var want []string
	for i := from; i < to; i++ {
		want = append(want, fmt.Sprint(i))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("records %v, want %d to %d", got, from, to-1)
	}
}

func closeLog(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// files returns the segments in a directory.
func files(t testing.TB, fs wal.FS, dir string) map[string][]byte {
	t.Helper()
	names, err := fs.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, ".wal") {
			all[name] = content(t, fs, filepath.Join(dir, name))
		}
	}
	return all
}

func content(t testing.TB, fs wal.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	closeLog(t, f)
	return b
}

// disk returns a file system with these files in dir.
func disk(t testing.TB, all map[string][]byte) *crashfs.FS {
	t.Helper()
	fs := crashfs.New(1)
	if err := fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, b := range all {
		f, err := fs.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

func segmentName(n int) string { return fmt.Sprintf("%016d.wal", n) }

func TestReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for round := range 4 {
		l, ids := open(t, dir, wal.Options{SegmentBytes: 2048}, 0)
		wantIDs(t, ids, 0, round*60)
		put(t, l, round*60, round*60+60)
		closeLog(t, l)
		r, err := wal.Inspect(dir, nil)
		if err != nil || r.Damage() != nil || r.Records() != round*60+60 {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*.wal")); len(names) < 8 {
		t.Errorf("only %d segments", len(names))
	}
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	want := []wal.Record{
		{ID: "", State: wal.Active},
		{ID: strings.Repeat("i", 65535), Due: -1, State: wal.Migrated, Data: []byte{}},
		{ID: "\x00\xff", Due: 1 << 62, State: 200, Data: []byte(strings.Repeat("d", 3<<20))},
	}
	l.Append()
	l.Append(want...)
	closeLog(t, l)
	i := 0
	l, err := wal.Open(dir, wal.Options{FS: fs}, 0, func(r *wal.Record) error {
		if w := want[i]; r.ID != w.ID || r.Due != w.Due || r.State != w.State || string(r.Data) != string(w.Data) {
			t.Errorf("record %d is another", i)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Fatal(i, err)
	}
	closeLog(t, l)
}

func TestRotateAndRemove(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	put(t, l, 0, 10)
	size := l.Size()
	n, err := l.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	put(t, l, 10, 15)
	for range 2 {
		if err := l.RemoveBefore(n); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.Size(); got != size { // one segment with its room each time
		t.Errorf("size %d after %d", got, size)
	}
	if err := l.RemoveBefore(n + 100); err != nil { // the present one stays
		t.Fatal(err)
	}
	closeLog(t, l)
	if len(files(t, fs, dir)) != 1 {
		t.Errorf("files %v", len(files(t, fs, dir)))
	}
	l, ids := open(t, dir, wal.Options{FS: fs}, n)
	wantIDs(t, ids, 10, 15)
	closeLog(t, l)
	for _, from := range []uint64{0, 1, n - 1, n + 2} {
		if _, _, err := tryOpen(dir, wal.Options{FS: fs}, from); !errors.Is(err, wal.ErrDamaged) {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

func TestReplayError(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	put(t, l, 0, 3)
	closeLog(t, l)
	mine := errors.New("mine")
	_, err := wal.Open(dir, wal.Options{FS: fs}, 0, func(*wal.Record) error { return mine })
	if !errors.Is(err, mine) || errors.Is(err, wal.ErrDamaged) || !strings.Contains(err.Error(), segmentName(1)) {
		t.Errorf("%v", err)
	}
}

func TestWait(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	if err := l.Wait(t.Context(), 0); err != nil {
		t.Errorf("the beginning: %v", err)
	}
	if err := l.Wait(t.Context(), 1); err == nil {
		t.Error("a position that was never given out is durable")
	}
	release := l.Hold()
	p := l.Append(rec(0))
	if l.Tail() != p {
		t.Errorf("tail %d, want %d", l.Tail(), p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Wait(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("while nothing is written: %v", err)
	}
	release()
	if err := l.Wait(t.Context(), p); err != nil {
		t.Error(err)
	}
	closeLog(t, l)
	closeLog(t, l)
	if err := l.Wait(t.Context(), p); err != nil {
		t.Errorf("durable before Close: %v", err)
	}
	if err := l.Wait(t.Context(), l.Append(rec(1))); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := l.Rotate(); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Rotate after Close: %v", err)
	}
}

// TestAppendIsWhole: a crash leaves all records of an Append or none, and those who
// append at the same time each find their records in their order.
func TestAppendIsWhole(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs, SegmentBytes: 64 << 10}, 0)
	const writers, rounds, each = 16, 30, 3
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				var recs []wal.Record
				for j := range each {
					recs = append(recs, wal.Record{ID: fmt.Sprint(w), Due: int64(i*each + j), State: wal.Active, Data: make([]byte, 100)})
				}
				if err := l.Wait(t.Context(), l.Append(recs...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	closeLog(t, l)
	next := map[string]int64{}
	var last string
	l, err := wal.Open(dir, wal.Options{FS: fs}, 0, func(r *wal.Record) error {
		if r.Due != next[r.ID] || r.Due%each != 0 && r.ID != last {
			return fmt.Errorf("record %d of %s after %s", r.Due, r.ID, last)
		}
		next[r.ID]++
		last = r.ID
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	for w := range writers {
		if next[fmt.Sprint(w)] != rounds*each {
			t.Errorf("%d records of writer %d", next[fmt.Sprint(w)], w)
		}
	}
}

func TestBatchesAreBounded(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	release := l.Hold()
	for i := range 6 {
		r := rec(i)
		r.Data = make([]byte, 800<<10)
		l.Append(r)
	}
	big := make([]wal.Record, 6)
	for i := range big {
		big[i] = wal.Record{ID: fmt.Sprint(6 + i), State: wal.Active, Data: make([]byte, 6<<20)}
	}
	p := l.Append(big...)
	release()
	if err := l.Wait(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	r, err := wal.Inspect(dir, fs)
	if err != nil || r.Damage() != nil {
		t.Fatal(r, err)
	}
	if n := r.Segments[0].Batches; n != 3+2 {
		t.Errorf("%d batches, want 3 of two records and the big Append in 2: %v", n, r)
	}
	l, ids := open(t, dir, wal.Options{FS: fs}, 0)
	wantIDs(t, ids, 0, 12)
	closeLog(t, l)
}

func TestPoisoned(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	put(t, l, 0, 5)
	syncs := 0
	fs.Inject(func(op crashfs.Op) error {
		if op.Kind == "sync" {
			syncs++
			return syscall.EIO
		}
		return nil
	})
	p := l.Append(rec(5))
	for range 2 {
		if err := l.Wait(t.Context(), p); !errors.Is(err, wal.ErrPoisoned) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("%v", err)
		}
	}
	fs.Inject(nil)
	if err := l.Wait(t.Context(), l.Append(rec(6))); !errors.Is(err, wal.ErrPoisoned) {
		t.Errorf("the log takes records again: %v", err)
	}
	if _, err := l.Rotate(); !errors.Is(err, wal.ErrPoisoned) {
		t.Errorf("Rotate: %v", err)
	}
	if err := l.Wait(t.Context(), 5); err != nil {
		t.Errorf("durable before: %v", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrPoisoned) || syncs != 1 {
		t.Errorf("Close: %v after %d failed syncs", err, syncs)
	}
	l, ids := open(t, dir, wal.Options{FS: fs}, 0)
	wantIDs(t, ids[:5], 0, 5)
	closeLog(t, l)
}
