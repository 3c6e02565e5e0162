package adapter

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestStatesNewestWins(t *testing.T) {
	s := newStates("b1")
	at := time.Unix(1000, 0)
	state := func(version int64, circuit string) bridgeState {
		return bridgeState{Bridge: "b2", CircuitState: circuit, Version: version}
	}
	for i, c := range []struct {
		state   bridgeState
		after   time.Duration
		newer   bool
		settled bool
	}{
		{state(10, "OPEN"), 0, true, false},
		{state(10, "OPEN"), time.Second, false, false},
		{state(9, "CLOSED"), 0, false, false},
		{state(12, "CLOSED"), 0, true, true},
		{state(11, "OPEN"), 0, false, true},
		{state(13, "HALF_OPEN"), 0, true, true},
		{state(14, "OPEN"), 0, true, false},
		{state(3, "CLOSED"), peerMemory, true, true}, // its clock was set back, long ago
	} {
		at = at.Add(c.after)
		if got := s.learn(c.state, at); got != c.newer {
			t.Errorf("%d: newer %v, want %v", i, got, c.newer)
		}
		if got := s.settled(at); got != c.settled {
			t.Errorf("%d: settled %v, want %v", i, got, c.settled)
		}
	}
}

func TestStatesForgetSilentPeers(t *testing.T) {
	s := newStates("b1")
	at := time.Unix(1000, 0)
	s.learn(bridgeState{Bridge: "b2", CircuitState: "OPEN", Version: 1}, at)
	s.learn(bridgeState{Bridge: "b3", CircuitState: "OPEN", Version: 1}, at.Add(time.Second))
	for _, c := range []struct {
		after time.Duration
		live  []string
	}{{0, []string{"b2", "b3"}}, {peerLife - 1, []string{"b2", "b3"}}, {peerLife, []string{"b3"}}, {peerLife + time.Second, nil}} {
		if got := s.live(at.Add(c.after)); !slices.Equal(got, c.live) {
			t.Errorf("after %v: %v live, want %v", c.after, got, c.live)
		}
		if got := s.settled(at.Add(c.after)); got != (c.live == nil) {
			t.Errorf("after %v: settled %v", c.after, got)
		}
	}
	if got := s.owner("some id"); got != "b1" {
		t.Errorf("%s owns a job although nobody else lives", got)
	}
}

// TestRendezvous: all bridges name the same one, each gets its share, and only
// the jobs of one that goes change hands.
func TestRendezvous(t *testing.T) {
	const jobs = 30_000
	at := time.Unix(1000, 0)
	all := []string{"bridge-0", "bridge-1", "bridge-2"}
	views := map[string]*states{}
	for _, self := range all {
		views[self] = newStates(self)
		for _, other := range all {
			if other != self {
				views[self].learn(bridgeState{Bridge: other, Version: 1}, at)
			}
		}
	}
	share := map[string]int{}
	for i := range jobs {
		id := fmt.Sprintf("order-%06d", i)
		owner := views[all[0]].owner(id)
		share[owner]++
		for _, self := range all[1:] {
			if got := views[self].owner(id); got != owner {
				t.Fatalf("%s: %s says %s, %s says %s", id, all[0], owner, self, got)
			}
		}
		if owner != all[2] && rendezvous(all[:2], id) != owner {
			t.Fatalf("%s changes hands because another bridge goes", id)
		}
	}
	for _, b := range all {
		if n := share[b]; n < jobs/3*9/10 || n > jobs/3*11/10 {
			t.Errorf("%s has %d of %d jobs", b, n, jobs)
		}
	}
}
