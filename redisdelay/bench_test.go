package redisdelay

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// benchJobs are a batch of jobs as producers send them: 256 bytes each.
func benchJobs(n int, id func(i int) string) []job.Job {
	due := job.At(time.Now())
	jobs := make([]job.Job, n)
	for i := range jobs {
		payload := make([]byte, 256)
		rand.Read(payload)
		jobs[i] = job.Job{
			ID: id(i), Target: "bench.jobs", Due: due, AckWait: 30 * time.Second, MaxAttempts: 10,
			Expires: due.Add(7 * 24 * time.Hour), Payload: payload,
		}
	}
	return jobs
}

func generatedID(int) string { return "" }

// redisCPU is the CPU time that the server has used.
func redisCPU(b *testing.B, c redis.UniversalClient) time.Duration {
	info, err := c.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var total float64
	for line := range strings.Lines(info) {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				f, _ := strconv.ParseFloat(v, 64)
				total += f
			}
		}
	}
	return time.Duration(total * float64(time.Second))
}

func benchStore(b *testing.B) *Store {
	// Without rewrites of the append-only file, which come and go.
	server := testredis.Start(b, "--auto-aof-rewrite-percentage", "0")
	s, err := Open(context.Background(), Options{URL: server.URL(), BridgeID: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// measure runs f per batch of jobs and reports times per job.
func measure(b *testing.B, s *Store, f func(batch int) int) {
	cpu, jobs, spent := redisCPU(b, s.client), 0, time.Duration(0)
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		jobs += f(i)
		spent += time.Since(start)
	}
	b.StopTimer()
	b.ReportMetric(float64(spent.Nanoseconds())/1e3/float64(jobs), "us/job")
	b.ReportMetric(float64((redisCPU(b, s.client)-cpu).Nanoseconds())/1e3/float64(jobs), "redis-us/job")
}

func BenchmarkPut(b *testing.B) {
	ctx := context.Background()
	for name, id := range map[string]func(batch, i int) string{
		"generated": func(int, int) string { return "" },
		"chosen":    func(batch, i int) string { return fmt.Sprintf("%08d-0000-4000-8000-%012d", batch, i) },
	} {
		b.Run(name, func(b *testing.B) {
			s := benchStore(b)
			measure(b, s, func(batch int) int {
				jobs := benchJobs(maxBatch, func(i int) string { return id(batch, i) })
				if _, err := s.Put(ctx, jobs); err != nil {
					b.Fatal(err)
				}
				return len(jobs)
			})
		})
	}
}

// BenchmarkClaimSettle works jobs off: a batch is claimed and then completed.
func BenchmarkClaimSettle(b *testing.B) {
	s, now := benchStore(b), job.At(time.Now())
	benchFill(b, s)
	measure(b, s, func(int) int {
		list := benchClaim(b, s, now)
		if _, err := s.Settle(context.Background(), now, list); err != nil {
			b.Fatal(err)
		}
		return len(list)
	})
}

// BenchmarkClaim claims all there is, so that ever more leases are held.
func BenchmarkClaim(b *testing.B) {
	s, now := benchStore(b), job.At(time.Now())
	benchFill(b, s)
	measure(b, s, func(int) int { return len(benchClaim(b, s, now)) })
}

// benchFill puts a batch of jobs for every round.
func benchFill(b *testing.B, s *Store) {
	for range b.N + 1 {
		if _, err := s.Put(context.Background(), benchJobs(maxBatch, generatedID)); err != nil {
			b.Fatal(err)
		}
	}
}

func benchClaim(b *testing.B, s *Store, now job.Time) []job.Settlement {
	c, err := s.Claim(context.Background(), job.ClaimRequest{Now: now.Add(time.Hour), Until: now.Add(time.Hour), Max: maxBatch, Owner: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	list := make([]job.Settlement, len(c.Deliveries))
	for i := range list {
		list[i].Ref = c.Deliveries[i].Ref()
	}
	return list
}

// BenchmarkMerge merges batches of pending jobs, spread over the shards, into a
// Redis that knows nothing of them; with "worked" one that remembers many that
// were completed, among which it looks for jobs that are not fresh.
func BenchmarkMerge(b *testing.B) {
	generated := func(_, i int) string { return job.NewID(uint16(i % 8)) }
	chosen := func(batch, i int) string { return fmt.Sprintf("%08d-0000-4000-8000-%012d", batch, i) }
	for _, c := range []struct {
		name          string
		id            func(batch, i int) string
		size          int // of a Merge
		worked, fresh bool
	}{
		{"generated/256", generated, 256, false, false},
		{"generated/1024", generated, 1024, false, false},
		{"chosen/1024", chosen, 1024, false, false},
		{"worked/1024", generated, 1024, true, false},
		{"worked-fresh/1024", generated, 1024, true, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, now := benchStore(b), job.At(time.Now())
			if c.worked {
				benchWorked(b, s, 200_000)
			}
			batches := make([][]job.MergeItem, b.N)
			for i := range batches {
				batches[i] = benchItems(benchJobs(c.size, func(k int) string { return c.id(i, k) }), c.fresh)
			}
			measure(b, s, func(batch int) int {
				if _, err := s.Merge(context.Background(), now, batches[batch]); err != nil {
					b.Fatal(err)
				}
				return c.size
			})
		})
	}
}

func benchItems(jobs []job.Job, fresh bool) []job.MergeItem {
	items := make([]job.MergeItem, len(jobs))
	for i := range jobs {
		jobs[i].Generated, jobs[i].Incarnation = len(jobs[i].ID) == 12, job.NextIncarnation()
		items[i] = job.MergeItem{Info: job.Info{Job: jobs[i], State: job.Pending, Next: jobs[i].Due}, Fresh: fresh}
	}
	return items
}

// benchWorked completes n jobs with generated ids.
func benchWorked(b *testing.B, s *Store, n int) {
	now := job.At(time.Now())
	for range n / 1024 {
		items := benchItems(benchJobs(1024, func(i int) string { return job.NewID(uint16(i % 8)) }), true)
		for i := range items {
			items[i].State, items[i].Attempt, items[i].Nonce = job.Done, 1, 1
		}
		if _, err := s.Merge(context.Background(), now, items); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkClaimSlots gives jobs that were set aside to 100 workers, in turn, and
// completes them.
func BenchmarkClaimSlots(b *testing.B) {
	ctx := context.Background()
	s, now := benchStore(b), job.At(time.Now())
	benchFill(b, s)
	blocked := job.ClaimRequest{Now: now.Add(time.Hour), Until: now.Add(time.Hour), Max: maxBatch, Blocked: []string{"bench.jobs"}}
	for {
		c, err := s.Claim(ctx, blocked)
		if err != nil {
			b.Fatal(err)
		}
		if c.NextDue == 0 {
			break
		}
	}
	var slots []job.Slot
	for i := range 100 {
		slots = append(slots, job.Slot{Owner: fmt.Sprintf("bench/worker-%d", i), Free: 10})
	}
	measure(b, s, func(int) int {
		c, err := s.Claim(ctx, job.ClaimRequest{Now: now.Add(time.Hour), Until: now.Add(time.Hour), Max: maxBatch, Target: "bench.jobs", Slots: slots})
		if err != nil {
			b.Fatal(err)
		}
		list := make([]job.Settlement, len(c.Deliveries))
		for i, d := range c.Deliveries {
			list[i] = job.Settlement{Ref: d.Ref(), Target: d.Target, Due: d.Due}
		}
		if _, err := s.Settle(ctx, now, list); err != nil {
			b.Fatal(err)
		}
		return len(list)
	})
}

// BenchmarkRunning looks at 100,000 jobs that run: a round lists them all, or
// asks for one of them.
func BenchmarkRunning(b *testing.B) {
	ctx := context.Background()
	s, now := benchStore(b), job.At(time.Now())
	var ids []string
	for range 100_000/maxBatch + 1 {
		if _, err := s.Put(ctx, benchJobs(maxBatch, generatedID)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 100_000/maxBatch + 1 {
		for _, st := range benchClaim(b, s, now.Add(time.Duration(i)*time.Millisecond)) {
			ids = append(ids, st.ID)
		}
	}
	b.Run("list", func(b *testing.B) {
		measure(b, s, func(int) int {
			n, q := 0, job.Query{State: job.Running, Limit: 1000}
			for {
				p, err := s.List(ctx, q)
				if err != nil {
					b.Fatal(err)
				}
				n += len(p.Jobs)
				if q.Cursor = p.Cursor; q.Cursor == "" {
					break
				}
			}
			if n != len(ids) {
				b.Fatalf("listed %d jobs of %d", n, len(ids))
			}
			return n
		})
	})
	b.Run("get", func(b *testing.B) {
		measure(b, s, func(i int) int {
			infos, err := s.Get(ctx, ids[i%len(ids):i%len(ids)+1])
			if err != nil || infos[0].State != job.Running {
				b.Fatal(infos, err)
			}
			return 1
		})
	})
}

// BenchmarkWriteOwners writes the keys of 1,000 workers that keep 10 jobs each. A
// round is one such call; times are per worker.
func BenchmarkWriteOwners(b *testing.B) {
	s := benchStore(b)
	updates := make([]job.OwnerUpdate, 1000)
	for i := range updates {
		updates[i] = job.OwnerUpdate{Worker: fmt.Sprintf("worker-%d", i), Beat: true}
		for range 10 {
			updates[i].Kept = append(updates[i].Kept, job.NewID(uint16(i%8)))
		}
	}
	var before, after syscall.Rusage
	measure(b, s, func(batch int) int {
		if batch == 0 {
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		}
		if err := s.WriteOwners(context.Background(), updates); err != nil {
			b.Fatal(err)
		}
		return len(updates)
	})
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/1e3/float64(b.N*len(updates)), "cpu-us/job")
}
