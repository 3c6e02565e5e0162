package redisdelay

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// heldAtMost is how long one call of a list may hold Redis.
const heldAtMost = 5 * time.Millisecond

// TestListHoldsRedisBriefly lists many jobs, half of them due at one instant, page by
// page, and asks Redis how long the calls took: a call on average, in time of the processor,
// since others want it too; with DELAYBRIDGE_SOAK, of a million jobs, all but one in a thousand,
// which the machine may have interrupted.
func TestListHoldsRedisBriefly(t *testing.T) {
	jobs, each := 30_000, os.Getenv("DELAYBRIDGE_SOAK") != ""
	if each {
		jobs = 1_000_000
	}
	ctx := context.Background()
	server := testredis.Start(t, "--appendonly", "no")
	s, c := open(t, server.URL()), raw(t, server)
	due := job.At(time.Now().Add(time.Hour))
	for n := 0; n < jobs; n += 1000 {
		batch := benchJobs(1000, generatedID)
		for i := range batch {
			batch[i].Due = due
			if i%2 == 0 {
				batch[i].Due += job.Time(n + i)
			}
			batch[i].Target = fmt.Sprintf("orders.%d", i%20)
		}
		if _, err := s.Put(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	for name, q := range map[string]job.Query{
		"all": {Limit: 1000}, "one target": {Limit: 1000, Target: "orders.7"}, "small pages": {Limit: 100, Target: "orders.8"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, args := range [][]any{
				{"config", "set", "slowlog-log-slower-than", heldAtMost.Microseconds(), "slowlog-max-len", 10_000},
				{"slowlog", "reset"}, {"config", "resetstat"},
			} {
				if err := c.Do(ctx, args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			begun := mainThreadCPU(t, c)
			found, pages := 0, 0
			for begin := true; begin || q.Cursor != ""; begin = false {
				p, err := s.List(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				q.Cursor = p.Cursor
				found, pages = found+len(p.Jobs), pages+1
			}
			want := jobs
			if q.Target != "" {
				want /= 20
			}
			slow, err := c.SlowLogGet(ctx, 10_000).Result()
			if err != nil {
				t.Fatal(err)
			}
			var worst time.Duration
			for _, l := range slow {
				worst = max(worst, l.Duration)
			}
			calls := callsOf(t, c)
			mean := (mainThreadCPU(t, c) - begun) / time.Duration(calls)
			t.Logf("%d jobs on %d pages, %d calls, %v a call, %d of them over %v, worst %v", found, pages, calls, mean, len(slow), heldAtMost, worst)
			if found != want {
				t.Errorf("%d jobs listed, want %d", found, want)
			}
			if mean > heldAtMost || each && len(slow) > calls/1000 {
				t.Errorf("%d of %d calls held Redis for over %v, the worst for %v, one on average for %v", len(slow), calls, heldAtMost, worst, mean)
			}
		})
	}
}

// callsOf is how many scripts ran since the statistics were reset.
func callsOf(t *testing.T, c *redis.Client) int {
	t.Helper()
	var calls int
	if _, err := fmt.Sscanf(infoField(t, c, "commandstats", "cmdstat_evalsha"), "calls=%d", &calls); err != nil {
		t.Fatal(err)
	}
	return calls
}

// mainThreadCPU is what the thread that runs commands has used of the processor.
func mainThreadCPU(t *testing.T, c *redis.Client) (used time.Duration) {
	t.Helper()
	for _, name := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		d, err := time.ParseDuration(infoField(t, c, "cpu", name) + "s")
		if err != nil {
			t.Fatal(err)
		}
		used += d
	}
	return used
}

// infoField is a field of a section of INFO.
func infoField(t *testing.T, c *redis.Client, section, name string) string {
	t.Helper()
	info, err := c.Info(context.Background(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %s in %q", name, info)
	return ""
}
