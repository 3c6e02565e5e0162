package memdelay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

const batch = 256

// BenchmarkLife takes batches of jobs through put, claim and complete, beside
// others that stay pending. An operation is one job.
func BenchmarkLife(b *testing.B) {
	for _, held := range []int{0, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			s := memdelay.New(memdelay.Options{MaxJobs: 2_000_000})
			fill(b, s, held)
			now := job.At(time.Now().Add(-time.Hour))
			var put, claim, complete time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				jobs := dueJobs(batch, now)
				put += timed(func() { must(s.Put(context.Background(), jobs)) })
				var c job.Claimed
				claim += timed(func() {
					c = must(s.Claim(context.Background(), job.ClaimRequest{Now: now, Until: now, Max: batch, Owner: "bridge"}))
				})
				list := make([]job.Settlement, len(c.Deliveries))
				for i := range list {
					list[i] = job.Settlement{Ref: c.Deliveries[i].Ref(), Outcome: job.Complete}
				}
				complete += timed(func() { must(s.Settle(context.Background(), now, list)) })
			}
			for name, d := range map[string]time.Duration{"put": put, "claim": claim, "complete": complete} {
				b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), name+"-ns/op")
			}
		})
	}
}

// BenchmarkDrain claims jobs from among many that are due at other times.
func BenchmarkDrain(b *testing.B) {
	s := memdelay.New(memdelay.Options{MaxJobs: max(b.N, 1)})
	fill(b, s, b.N)
	until := job.At(time.Now().Add(time.Hour))
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		must(s.Claim(context.Background(), job.ClaimRequest{Now: until, Until: until, Max: batch, Owner: "bridge"}))
	}
}

// BenchmarkList fetches one page from the middle of a million jobs.
func BenchmarkList(b *testing.B) {
	s := memdelay.New(memdelay.Options{})
	fill(b, s, 1_000_000)
	q := job.Query{Limit: 100}
	q.Cursor = must(s.List(context.Background(), q)).Cursor
	for b.Loop() {
		must(s.List(context.Background(), q))
	}
}

func dueJobs(n int, due job.Time) []job.Job {
	payload := make([]byte, 256)
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = job.Job{Target: "bench.jobs", Due: due, AckWait: 30 * time.Second, MaxAttempts: 10, Payload: payload}
	}
	return jobs
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
