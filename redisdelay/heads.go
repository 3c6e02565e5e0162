package redisdelay

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// A head is a time, or one of these.
const (
	never   = job.Time(math.MaxInt64) // the shard has nothing
	unknown = job.Time(1)             // ask the shard
)

// sample says that at most rank jobs of a shard are due before at.
type sample struct {
	at   job.Time
	rank int
}

// heads remembers the earliest due time of each shard, so that a claim asks
// only shards that have something, and samples of its backlog, so that a claim
// can take the earliest jobs of all shards. What this store puts or gives back
// lowers a head; replies set it; and because others put too, all heads become
// unknown once per look interval.
type heads struct {
	mu       sync.Mutex
	next     []job.Time
	samples  [][]sample
	version  []uint64 // counts lowerings, so that an older reply cannot undo one
	lastLook time.Time
}

func newHeads(shards int) *heads {
	h := &heads{next: make([]job.Time, shards), samples: make([][]sample, shards), version: make([]uint64, shards)}
	for i := range h.next {
		h.next[i] = unknown
	}
	return h
}

// lower notes that the shard has a job due at t.
func (h *heads) lower(shard int, t job.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version[shard]++
	h.next[shard] = min(h.next[shard], t)
	for i, s := range h.samples[shard] {
		if s.at > t { // counts one more now
			h.samples[shard] = h.samples[shard][:i]
			break
		}
	}
}

// candidate is a shard that may have something due, and the version of its
// head when it was looked at.
type candidate struct {
	shard   int
	next    job.Time
	samples []sample
	version uint64
}

// due returns the shards to ask for what is due by until, the earliest first.
// Without now it takes the heads as they are.
func (h *heads) due(until job.Time, now time.Time, look time.Duration) []candidate {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !now.IsZero() && now.Sub(h.lastLook) >= look {
		h.lastLook = now
		for i := range h.next {
			h.next[i] = unknown
		}
	}
	var found []candidate
	for i, next := range h.next {
		if next <= until {
			found = append(found, candidate{i, next, h.samples[i], h.version[i]})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Compare(a.next, b.next) })
	return found
}

// set takes over what a reply said, unless the head was lowered since.
func (h *heads) set(c candidate, next job.Time, samples []sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version[c.shard] != c.version {
		next, samples = min(next, h.next[c.shard]), nil
	}
	h.next[c.shard], h.samples[c.shard] = next, samples
}

// forget makes the next claim ask the shard again.
func (h *heads) forget(shard int) { h.lower(shard, unknown) }

// first is the earliest head of all; zero: none.
func (h *heads) first() job.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := slices.Min(h.next); t != never {
		return t
	}
	return 0
}

// ask is what a claim wants of one shard.
type ask struct {
	candidate
	until job.Time
	max   int
}

// plan shares a claim of limit jobs due by until among the shards (in order of
// their heads) so that the earliest jobs are taken: it finds the latest time
// up to which all shards can be emptied within the limit. A shard without
// samples is asked for an equal share; when that is not all, its reply brings
// samples. Where nothing fits, because many jobs are due at one instant, the
// first shard alone is asked, up to the head of the second.
func plan(shards []candidate, until job.Time, limit int) []ask {
	if len(shards) == 0 || limit < 1 {
		return nil
	}
	if len(shards) == 1 {
		return []ask{{shards[0], until, limit}}
	}
	share := max(limit/len(shards), 1)
	for _, t := range planTimes(shards, until) {
		var asks []ask
		total := 0
		for _, c := range shards {
			if c.next <= t {
				n := c.atMost(t, share, limit)
				asks = append(asks, ask{c, t, n})
				total += n
			}
		}
		if total <= limit {
			return asks
		}
	}
	return planTies(shards, until, limit)
}

// planTies is the plan when more is due at the earliest time than may be
// claimed: of one instant every order is right, so all shards that have it
// share the limit.
func planTies(shards []candidate, until job.Time, limit int) []ask {
	first := shards[0].next
	ties := shards[:1]
	for len(ties) < min(len(shards), limit) && shards[len(ties)].next == first {
		ties = shards[:len(ties)+1]
	}
	if len(ties) == 1 {
		return []ask{{shards[0], min(until, shards[1].next), limit}}
	}
	asks := make([]ask, len(ties))
	for i, c := range ties {
		asks[i] = ask{c, first, limit / len(ties)}
	}
	return asks
}

// planPast is the plan of a claim that begins past a backlog: heads and samples
// tell of the backlog alone, so every shard is asked for an equal share.
func planPast(shards []candidate, until job.Time, limit int) []ask {
	shards = shards[:min(len(shards), max(limit, 0))]
	asks := make([]ask, len(shards))
	for i, c := range shards {
		asks[i] = ask{c, until, limit / len(shards)}
	}
	return asks
}

// planTimes are the times worth trying, the latest first.
func planTimes(shards []candidate, until job.Time) []job.Time {
	times := []job.Time{until}
	for _, c := range shards {
		for _, s := range c.samples {
			if t := s.at - 1; t < until && t >= shards[0].next {
				times = append(times, t)
			}
		}
	}
	slices.SortFunc(times, func(a, b job.Time) int { return cmp.Compare(b, a) })
	return slices.Compact(times)
}

// atMost is how many jobs the shard may have due by t.
func (c *candidate) atMost(t job.Time, share, limit int) int {
	if len(c.samples) == 0 {
		return share
	}
	for _, s := range c.samples {
		if s.at > t {
			return s.rank
		}
	}
	return limit + 1
}
