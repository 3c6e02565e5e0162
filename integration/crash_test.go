package integration

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
)

// crashJobs are so many that each point is passed in the middle of them.
const crashJobs = 40

// crashWithin is how long after a crash all is done, at the latest.
const crashWithin = 15 * time.Second

// A bridge that is killed between any two steps of a dispatch and started again
// loses nothing, and its live workers get nothing twice: what they run they
// keep, and what they completed meanwhile they complete again until a bridge
// answers.
func TestBridgeCrashes(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		for _, point := range failpoint.Bridge {
			t.Run(string(point), func(t *testing.T) {
				t.Parallel()
				bridgeCrash(t, kind, point)
			})
		}
	})
}

func bridgeCrash(t *testing.T, kind storeKind, point failpoint.Point) {
	w := newWorks(t, kind)
	w.startArmed(point, 3, crashTTL...)
	h1 := w.join("w1", beatOf("-capacity", "4", "-work", "30ms")...)
	h2 := w.join("w2", beatOf("-capacity", "4", "-work", "30ms")...)
	w.spread(crashJobs, 500*time.Millisecond, crewTarget)
	_, healed := w.Fault(string(point), true)
	awaitExit(t, "the bridge at "+string(point), w.bridge.exited)
	w.start()
	healed()
	begin := time.Now()
	w.settled()
	if took := time.Since(begin); took > crashWithin {
		t.Errorf("all jobs were done %v after the restart, want at most %v: not by their leases of 30 s", took, crashWithin)
	}
	w.close(Explained, h1, h2)
	w.wantOnce()
}

// A worker that is killed between any two steps of a job loses nothing: its jobs
// come to the other, and none of those that the other had.
func TestWorkerCrashes(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		for _, point := range failpoint.Worker {
			t.Run(string(point), func(t *testing.T) {
				t.Parallel()
				workerCrash(t, kind, point)
			})
		}
	})
}

func workerCrash(t *testing.T, kind storeKind, point failpoint.Point) {
	w := newWorks(t, kind)
	w.start(crashTTL...)
	h1 := w.crew.armed(point, 5, "w1", beatOf("-capacity", "4", "-work", "30ms")...)
	h2 := w.join("w2", beatOf("-capacity", "4", "-work", "30ms")...)
	w.spread(crashJobs, 500*time.Millisecond, crewTarget)
	awaitExit(t, "w1 at "+string(point), h1.exited)
	begin := time.Now()
	w.settled()
	if took := time.Since(begin); took > crashWithin {
		t.Errorf("all jobs were done %v after the kill, want at most %v: not by their leases of 30 s", took, crashWithin)
	}
	w.close(Explained, h2)
	w.wantAgainOnlyOf("w1")
}
