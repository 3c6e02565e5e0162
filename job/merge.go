package job

import "context"

// Merger is a store that takes over what happened to jobs in another one.
type Merger interface {
	// Merge takes jobs over in the state that another store has them in, or finds
	// that this store knows better; docs/failover.md has the rules. One result per
	// item, in order. It may be repeated with the same items, whatever became of
	// the call before. now is the time of the call.
	Merge(ctx context.Context, now Time, items []MergeItem) ([]MergeResult, error)
}

// MergeItem is a job as another store has it. Pending: Next is the next
// attempt, Attempt counts those before. Running: Attempt, Nonce, Owner and Next
// (the end of the lease) stay as they are. Done, Cancelled, Dead: Next is when
// it ended; of the first two only ID, Generated, Incarnation, Target, Due,
// Attempt and Nonce need to be set.
type MergeItem struct {
	Info
	// Offer: take it only if nothing is known of the ID.
	Offer bool
	// Fresh: this store was never sent the job, so it need not look for one of a
	// generated ID that has ended, which takes long. Only a hint.
	Fresh bool
}

// MergeResult is the outcome of one item of a Merge.
type MergeResult uint8

// The results of a merge.
const (
	Merged MergeResult = iota // the store now has the job in the item's state
	Kept                      // the store knows the same or a later state of this job
	Joined                    // another job of the ID lives, and the two are one now: it stays, or ended with the item
	Busy                      // another job of the ID is running; try again later
)
