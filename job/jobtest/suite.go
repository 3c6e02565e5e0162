// Package jobtest is the conformance suite for implementations of
// [job.Store]: what the comments of that interface promise, as tests. A store
// that passes can take the place of any other.
package jobtest

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// Suite says how to get at the store under test.
type Suite struct {
	// Open returns a new handle on an empty store; it registers its own
	// cleanup.
	Open func(t *testing.T) job.Store
	// Peer returns a second handle on the data of s, as another process would
	// have it; nil: there is only one, and s is used again.
	Peer func(t *testing.T, s job.Store) job.Store
	// DedupWindow is the window that Open configures; zero: 2 minutes.
	DedupWindow time.Duration
	// Stored is what the store answers; empty: not checked.
	Stored string
}

// Run tests the stores that open returns.
func Run(t *testing.T, open func(t *testing.T) job.Store) { Suite{Open: open}.Run(t) }

// Run runs every test, each on a store of its own.
func (s Suite) Run(t *testing.T) {
	if s.DedupWindow == 0 {
		s.DedupWindow = 2 * time.Minute
	}
	groups := []struct {
		name  string
		tests []test
	}{
		{"Put", putTests}, {"Dedup", dedupTests}, {"Replace", replaceTests}, {"Bytes", bytesTests},
		{"Claim", claimTests}, {"SetAside", setAsideTests}, {"Slots", slotTests}, {"Settle", settleTests},
		{"Own", ownTests}, {"Fencing", fencingTests}, {"Lease", leaseTests}, {"Get", getTests}, {"Cancel", cancelTests}, {"Reschedule", rescheduleTests},
		{"Guard", guardTests}, {"List", listTests}, {"Count", countTests}, {"Load", loadTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, one := range g.tests {
				t.Run(one.name, func(t *testing.T) { one.run(newHarness(t, s)) })
			}
		})
	}
}

type test struct {
	name string
	run  func(h *harness)
}
