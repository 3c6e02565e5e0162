package job

import "strings"

// An owner of a lease is a bridge, or a worker to which that bridge gave the
// job: "bridge" or "bridge/worker". Neither id holds a slash.

// OwnerOf returns the owner of a lease that bridge gave to worker; an empty
// worker stands for the bridge itself.
func OwnerOf(bridge, worker string) string {
	if worker == "" {
		return bridge
	}
	return bridge + "/" + worker
}

// SplitOwner takes an owner apart. The worker is empty when the bridge itself
// has the lease, or a plain worker that nobody knows.
func SplitOwner(owner string) (bridge, worker string) {
	bridge, worker, _ = strings.Cut(owner, "/")
	return bridge, worker
}

// Slot is how many more deliveries an owner takes.
type Slot struct {
	Owner string
	Free  int
}

// MaxOwner is the longest owner in bytes.
const MaxOwner = 129

// OwnerUpdate is what changed about one worker since the last update: what a
// store shows people of it. It decides nothing.
type OwnerUpdate struct {
	Worker string
	// Beat: a heartbeat came; the worker and its jobs are shown for another
	// while.
	Beat bool
	// Gone: the worker has left or died; nothing of it is shown any more.
	Gone bool
	// Added and Removed are ids of jobs that it owns now, and no longer.
	Added, Removed []string
	// Kept are ids of further jobs that it owns; set with Beat.
	Kept []string
}
