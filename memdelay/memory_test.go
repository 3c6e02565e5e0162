package memdelay_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// fill puts n jobs of 256 bytes with generated ids, due at distinct times that
// are not in order.
func fill(tb testing.TB, s *memdelay.Store, n int) {
	tb.Helper()
	t0 := job.At(time.Now())
	payload := make([]byte, 256)
	jobs := make([]job.Job, 0, 256)
	for i := 0; i < n; i += len(jobs) {
		jobs = jobs[:0]
		for k := range min(256, n-i) {
			due := t0.Add(time.Duration((i+k)*7919%n) * time.Microsecond)
			jobs = append(jobs, job.Job{
				Target: "bench.jobs", Due: due, Expires: due.Add(7 * 24 * time.Hour),
				AckWait: 30 * time.Second, MaxAttempts: 10, Payload: payload,
			})
		}
		if _, err := s.Put(context.Background(), jobs); err != nil {
			tb.Fatal(err)
		}
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what the first one could not sweep yet
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestBytesPerJob(t *testing.T) {
	const n, limit = 250_000, 450
	s := memdelay.New(memdelay.Options{})
	before := heapInUse()
	fill(t, s, n)
	perJob := float64(heapInUse()-before) / n
	runtime.KeepAlive(s)
	t.Logf("%.0f bytes per pending job", perJob)
	if perJob > limit {
		t.Errorf("%.0f bytes per pending job, want at most %d", perJob, limit)
	}
}
