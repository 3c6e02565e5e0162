package integration

import (
	"fmt"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// Spread is the distribution of durations.
type Spread struct {
	N                        int
	P50, P90, P99, P999, Max time.Duration
}

// spread sorts d.
func spread(d []time.Duration) Spread {
	n := len(d)
	if n == 0 {
		return Spread{}
	}
	slices.Sort(d)
	return Spread{n, d[n/2], d[n*9/10], d[n*99/100], d[n*999/1000], d[n-1]}
}

func (s Spread) String() string {
	short := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %v p90 %v p99 %v p99.9 %v max %v (n=%d)",
		short(s.P50), short(s.P90), short(s.P99), short(s.P999), short(s.Max), s.N)
}

// Waits is how long producers waited for their answers; those that got none
// are not in it.
func (c *Checker) Waits() Spread {
	return c.gather(func(j *tracked) (time.Duration, bool) { return j.wait, j.wait > 0 })
}

// Histogram counts waits by upper bound; the last count is of those beyond all
// bounds.
func (c *Checker) Histogram(bounds []time.Duration) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := make([]int, len(bounds)+1)
	for _, j := range c.jobs {
		if j.wait > 0 {
			i, _ := slices.BinarySearch(bounds, j.wait)
			n[i]++
		}
	}
	return n
}

// Lateness is how long after their due time, or after the answer to their
// producer where that came later, jobs were delivered first: those of the target
// that became due from, and before, to.
func (c *Checker) Lateness(target string, from, to job.Time) Spread {
	return c.gather(func(j *tracked) (time.Duration, bool) {
		due := max(j.due, j.answered)
		if j.target != target || !j.accepted || len(j.delivered) == 0 || due < from || due >= to {
			return 0, false
		}
		return max(0, j.delivered[0].at.Sub(due)), true
	})
}

// LatenessOf is the distribution of delivered minus due of the deliveries to a
// target that were due from, and before, to.
func (c *Checker) LatenessOf(target string, from, to time.Time) Spread {
	var late []time.Duration
	for _, d := range c.Deliveries(target) {
		if !d.Due.Before(from) && d.Due.Before(to) {
			late = append(late, d.At.Sub(d.Due))
		}
	}
	return spread(late)
}

func (c *Checker) gather(f func(*tracked) (time.Duration, bool)) Spread {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]time.Duration, 0, len(c.jobs))
	for _, j := range c.jobs {
		if d, ok := f(j); ok {
			all = append(all, d)
		}
	}
	return spread(all)
}

// Waiting returns what breaks G8: producers that waited longer than limit, and
// such as got no answer though no bridge was killed meanwhile.
func (c *Checker) Waiting(limit time.Duration) (found []Violation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.wait > limit {
			found = append(found, violation("G8", j, "was answered only after %v", j.wait.Round(time.Millisecond)))
		}
	}
	for _, s := range c.silent {
		if !c.overlapped(s.from, s.to, true) {
			found = append(found, violation("G8", s.job, "was not answered within %v", s.to.Sub(s.from).Round(time.Millisecond)))
		}
	}
	return shortened(found)
}

// FirstLocal returns when the first job that was sent at or after the given
// time was answered from the local store; zero: none was.
func (c *Checker) FirstLocal(from job.Time) (at job.Time) { return c.firstStored(inLocal, from) }

// FirstRedis is FirstLocal for Redis.
func (c *Checker) FirstRedis(from job.Time) (at job.Time) { return c.firstStored(inRedis, from) }

func (c *Checker) firstStored(where storedAt, from job.Time) (at job.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.accepted && j.stored == where && j.sent >= from && (at == 0 || j.answered < at) {
			at = j.answered
		}
	}
	return at
}
