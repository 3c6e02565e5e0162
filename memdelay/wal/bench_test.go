package wal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// benchDir is on the disk that DELAYBRIDGE_BENCH_DIR names: the directory for
// temporary files may be in memory.
func benchDir(b *testing.B) string {
	b.Helper()
	base := os.Getenv("DELAYBRIDGE_BENCH_DIR")
	if base == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(base, "wal")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// rawSyncs is what one writer of 512 B that appends and syncs gets, per second.
func rawSyncs(b *testing.B, dir string, d time.Duration) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	buf, n, start := make([]byte, 512), 0, time.Now()
	for ; time.Since(start) < d; n++ {
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// BenchmarkDurable is durable acknowledgements: writers that each append a record of
// 512 B and wait for it, and the raw rate of the same disk in the same run.
func BenchmarkDurable(b *testing.B) {
	for _, writers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			dir := benchDir(b)
			raw := rawSyncs(b, dir, 500*time.Millisecond)
			var syncs, bytes atomic.Int64
			l, _ := open(b, dir, wal.Options{OnSync: func(_ time.Duration, _, n int) { syncs.Add(1); bytes.Add(int64(n)) }}, 0)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range writers {
				wg.Go(func() {
					r := wal.Record{ID: fmt.Sprint(w), State: wal.Active, Data: make([]byte, 512)}
					for left.Add(-1) >= 0 {
						if err := l.Wait(background, l.Append(r)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			rate := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(rate, "acks/s")
			b.ReportMetric(raw, "raw/s")
			b.ReportMetric(rate/raw, "ratio")
			b.ReportMetric(float64(b.N)/float64(syncs.Load()), "recs/sync")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkOpen replays 200,000 records of 350 B.
func BenchmarkOpen(b *testing.B) {
	const records = 200_000
	dir := benchDir(b)
	l, _ := open(b, dir, wal.Options{}, 0)
	r := wal.Record{ID: "0123456789ab", State: wal.Active, Data: make([]byte, 350)}
	for range records {
		l.Append(r)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		n := 0
		l, err := wal.Open(dir, wal.Options{}, 0, func(*wal.Record) error { n++; return nil })
		if err != nil || n != records {
			b.Fatal(n, err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(records*b.N)/b.Elapsed().Seconds(), "recs/s")
}

// BenchmarkAppend is the cost of Append to its caller.
func BenchmarkAppend(b *testing.B) {
	l, _ := open(b, benchDir(b), wal.Options{}, 0)
	r := wal.Record{ID: "0123456789ab", State: wal.Active, Data: make([]byte, 350)}
	for i := 0; b.Loop(); i++ {
		p := l.Append(r)
		if i%4096 == 0 {
			b.StopTimer()
			if err := l.Wait(background, p); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
