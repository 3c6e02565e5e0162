package adapter

import (
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// bridgeState is what a bridge tells its peers at each change, and once a
// second.
type bridgeState struct {
	Bridge       string `json:"bridge"`
	CircuitState string `json:"circuit_state"` // CLOSED, OPEN or HALF_OPEN
	Version      int64  `json:"version"`       // rises with each change, across restarts too
	UpdatedMS    int64  `json:"updated_ms"`
}

// stateAck acknowledges a bridgeState.
type stateAck struct {
	Bridge  string `json:"bridge"` // who acknowledges
	Version int64  `json:"version"`
}

const (
	// peerLife is how long a bridge counts as live after its last state.
	peerLife = 3 * time.Second
	// peerMemory is how long its version counts after that.
	peerMemory = time.Minute
)

// states holds the newest state of each peer. Times are an input.
type states struct {
	self string

	mu    sync.Mutex
	peers map[string]peerState
	alive atomic.Pointer[[]string] // self and the live peers, sorted
}

type peerState struct {
	bridgeState
	seen time.Time
}

func newStates(self string) *states {
	s := &states{self: self, peers: map[string]peerState{}}
	s.alive.Store(&[]string{self})
	return s
}

// learn takes in what a peer says, unless something newer is known, and reports
// whether it is newer than what was known.
func (s *states) learn(st bridgeState, now time.Time) (newer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.peers[st.Bridge]
	known = known && now.Sub(was.seen) < peerMemory
	if known && st.Version < was.Version {
		return false
	}
	s.peers[st.Bridge] = peerState{st, now}
	s.refresh(now)
	return !known || st.Version > was.Version
}

// live returns the peers that were heard of lately.
func (s *states) live(now time.Time) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(now)
	for _, id := range *s.alive.Load() {
		if id != s.self {
			out = append(out, id)
		}
	}
	return out
}

// settled reports whether no live peer is without the shared store.
func (s *states) settled(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.isLive(now) && p.CircuitState == job.ModeLocal.Circuit() {
			return false
		}
	}
	return true
}

// allClosed reports whether every peer that was heard of in peerMemory reached the
// shared store when it was heard last.
func (s *states) allClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.CircuitState != job.ModeRedis.Circuit() {
			return false
		}
	}
	return true
}

// alone reports whether no peer was heard of in peerMemory.
func (s *states) alone(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if now.Sub(p.seen) < peerMemory {
			return false
		}
	}
	return true
}

func (p *peerState) isLive(now time.Time) bool { return now.Sub(p.seen) < peerLife }

// refresh makes anew what owner reads without a lock. s.mu is held.
func (s *states) refresh(now time.Time) {
	maps.DeleteFunc(s.peers, func(_ string, p peerState) bool { return now.Sub(p.seen) >= peerMemory })
	alive := []string{s.self}
	for id, p := range s.peers {
		if p.isLive(now) {
			alive = append(alive, id)
		}
	}
	slices.Sort(alive)
	s.alive.Store(&alive)
}

// owner returns the bridge among the live ones that rendezvous hashing names
// for the job: each of them names the same.
func (s *states) owner(id string) string {
	alive := *s.alive.Load()
	if len(alive) == 1 {
		return s.self
	}
	return rendezvous(alive, id)
}

// isLive reports whether the bridge of that id is among the live ones.
func (s *states) isLive(id string) bool { return slices.Contains(*s.alive.Load(), id) }

// rendezvous returns the one of bridges with the highest hash together with id.
func rendezvous(bridges []string, id string) (owner string) {
	var most uint64
	for _, b := range bridges {
		h := fnv.New64a()
		h.Write([]byte(b + "\x00" + id)) // never fails
		if sum := mix(h.Sum64()); owner == "" || sum > most {
			owner, most = b, sum
		}
	}
	return owner
}

// mix spreads over all bits what FNV leaves in the lower ones: without it the
// shares of the bridges differ by a third.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
