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

// heads remembers the earliest due time of each shard, so that a claim asks
// only shards that have something. What this store puts or gives back lowers
// a head; replies set it; and because others put too, all heads become unknown
// once per look interval.
type heads struct {
	mu       sync.Mutex
	next     []job.Time
	version  []uint64 // counts lowerings, so that an older reply cannot undo one
	lastLook time.Time
}

func newHeads(shards int) *heads {
	h := &heads{next: make([]job.Time, shards), version: make([]uint64, shards)}
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
}

// candidate is a shard to ask, and the version of its head when it was chosen.
type candidate struct {
	shard   int
	next    job.Time
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
			found = append(found, candidate{i, next, h.version[i]})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Compare(a.next, b.next) })
	return found
}

// set takes over what a reply said, unless the head was lowered since.
func (h *heads) set(c candidate, next job.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version[c.shard] != c.version {
		next = min(next, h.next[c.shard])
	}
	h.next[c.shard] = next
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
