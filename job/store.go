package job

import "context"

// Store holds jobs. Implementations are safe for concurrent use. Every call
// takes a batch, because a round trip or an fsync is shared by the whole batch.
//
// Times are an input: a store never reads a clock to decide what is due or
// expired (it may to refuse a call that arrives too late). The caller passes
// one consistent clock. The ids of jobs that ended are remembered for the dedup
// window, at most for two, counted from the time given to Settle or Cancel up
// to the latest time given to any call; a store may set a limit to their number.
//
// An error from a call means that its outcome is unknown or that nothing was
// done; the caller may repeat the call. What is wrong with one job of a batch
// is reported in that job's result and never hurts the others.
type Store interface {
	Queue
	Index
	// Close releases the store. Jobs stay where they are.
	Close() error
}

// Queue is what the hot path needs.
type Queue interface {
	// Put stores jobs as pending. Before anything else it sets ID, Generated
	// and Incarnation where they are empty, in place, so that a caller can put
	// the very same jobs again: a job that is already stored under its ID and
	// Incarnation is reported as stored, not as a duplicate. When Put returns
	// without error every job without an Err in its result is as durable as
	// the store promises. One result per job, in order. A batch acts as its
	// jobs put one after the other, also when IDs repeat within it. A job that
	// was stored and has ended since is reported as stored too, and stays ended.
	//
	// Replace takes the place of a pending or dead job and starts anew; where
	// there is none, or one that ended, the job is created. A job that Check
	// refuses gets that error.
	Put(ctx context.Context, jobs []Job) ([]PutResult, error)

	// Claim leases pending jobs, see ClaimRequest.
	Claim(ctx context.Context, r ClaimRequest) (Claimed, error)

	// Expired returns up to max deliveries whose lease ended at or before now,
	// earliest first, and when the next lease ends (zero: none; it may be in
	// the past when max was reached). It changes nothing: the caller decides,
	// and settles each by its Ref.
	Expired(ctx context.Context, now Time, max int) ([]Delivery, Time, error)

	// Settle ends, renews or gives back deliveries. One result per settlement,
	// in order. now is the time recorded for jobs that end.
	Settle(ctx context.Context, now Time, s []Settlement) ([]SettleResult, error)

	// Waiting lists the targets that have jobs set aside.
	Waiting(ctx context.Context) ([]string, error)

	// Prune removes up to max dead jobs that died at or before the given time,
	// and returns how many. Their ids are free and unknown afterwards.
	Prune(ctx context.Context, before Time, max int) (int, error)
}

// Index is what people and programs ask about single jobs. Unknown ids are
// results, not errors.
type Index interface {
	// Get returns what is known of each id, in order; an unknown one has an
	// empty State. Jobs that ended are known for the dedup window, by ID,
	// Generated, Incarnation, Target, Due, Attempt, State and Next alone; dead
	// ones as long as they are kept.
	Get(ctx context.Context, ids []string) ([]Info, error)
	// List returns one page of jobs, see Query.
	List(ctx context.Context, q Query) (Page, error)
	// Cancel removes pending and dead jobs and frees their ids at once, see
	// Cancellation. now is the time recorded. What ended, cancelled jobs too, is
	// finished. One result per cancellation, in order.
	Cancel(ctx context.Context, now Time, list []Cancellation) ([]Change, error)
	// Reschedule gives pending jobs, set aside or not, a new due time. With
	// Requeue set it acts on dead jobs instead, whose attempts go on rising
	// while their budget starts anew (a pending one is then unknown; without
	// Requeue a dead one is finished). Expires moves along with Due. One result
	// per request, in order.
	Reschedule(ctx context.Context, r []Reschedule) ([]Change, error)
	// Count returns how many jobs there are, fast enough for a look every few
	// seconds at a million of them. Jobs that change their state while it runs
	// may be missed, or counted twice.
	Count(ctx context.Context) (Counts, error)
}

// PutResult is the outcome of one job of a Put.
type PutResult struct {
	// Duplicate: the ID lives already, or ended within the dedup window; the
	// job was not stored.
	Duplicate bool
	// Due is the job's due time, or the first one's when Duplicate.
	Due Time
	// Stored is one of the Stored constants.
	Stored string
	// Err is nil, or an *Error: ErrConflict when the ID lives under another
	// first token of the target, or when Replace met a running job; ErrFull.
	Err error
}

// ClaimRequest asks for due jobs under a lease. The lease of each ends at the
// later of Now and its Next, plus its AckWait. Attempt rises by one and a
// new Nonce is drawn.
type ClaimRequest struct {
	Now   Time
	Until Time   // jobs whose next attempt is due at or before this
	From  Time   // and at or after this; a hint: a store may ignore it
	Max   int    // at most this many deliveries
	Owner string // recorded with the lease; at most MaxOwner bytes
	// Target, when set, claims from the jobs set aside for this target only.
	Target string
	// Slots, only with Target, are who gets the deliveries instead of Owner: in
	// turn, each at most as many as it has free. A claim leases no more than
	// they have free together.
	Slots []Slot
	// Blocked are targets that take nothing now: their due jobs are set aside
	// instead of leased. A store may stop after setting aside a number of its
	// choice. A target that has jobs set aside must stay in Blocked until a
	// claim with Target returned NextDue zero, or its order is lost.
	Blocked []string
}

// Claimed is the outcome of a Claim.
type Claimed struct {
	Deliveries []Delivery // in order of their due times
	SetAside   int        // how many jobs were set aside
	Aside      []Aside    // for which targets
	Last       Time       // the latest due time that was looked at, zero: none
	// NextDue is the earliest due time that is left (within the target's jobs
	// set aside when Target was given), zero: none. It is at or before Until
	// when the call stopped early: call again.
	NextDue Time
}

// Aside is a target for which a claim has set jobs aside.
type Aside struct {
	Target string
	Next   Time // the earliest due time of these jobs
}

// Outcome says how a delivery ends.
type Outcome uint8

// The outcomes of a delivery.
const (
	// Complete ends the job: it becomes done.
	Complete Outcome = iota
	// Retry makes the job pending, due again at At.
	Retry
	// Release makes the job pending at At and takes the attempt back: the
	// delivery never reached a worker.
	Release
	// SetAside is Release into the jobs set aside for the Target.
	SetAside
	// Bury ends the job: it becomes dead, for Reason.
	Bury
	// Extend renews the lease until At, which may not be zero.
	Extend
	// Own is Extend, and makes Owner the owner of the lease, unless another
	// worker has it: then the result is Taken and nothing changes. The owner that
	// has it already may repeat it, and so may its worker at another bridge.
	Own
)

// Settlement ends or renews one delivery.
type Settlement struct {
	Ref
	Outcome Outcome
	// At is the next attempt of Retry, Release and SetAside, the end of the
	// lease of Extend.
	At Time
	// Target is the job's, which SetAside needs. Complete and SetAside spare the
	// store a look at the job when it and Due, the job's due time, are given.
	Target string
	Due    Time
	// Spare keeps Release and SetAside from taking the attempt back: it does not
	// count against MaxAttempts (Base rises with it), but its number is used up.
	Spare bool
	// Reason is why Bury ends the job, at most 255 bytes (longer ones are cut).
	Reason string
	// Owner is the new owner of Own, with a worker.
	Owner string
}

// SettleResult is the outcome of one settlement.
type SettleResult uint8

// The results of a settlement.
const (
	Settled     SettleResult = iota // done as asked
	Repeated                        // Complete only: this very delivery was completed before
	Stale                           // the Ref is not the job's present one; nothing changed
	Unknown                         // no such job; nothing changed
	Taken                           // Own only: another worker has the lease; nothing changed
	Unreachable                     // the store that holds the job cannot be reached; whoever settles may repeat it
)

// Query selects one page of List: the jobs of one state in the order of Next,
// ties by id. A job that is in the state with the same Next throughout is
// neither skipped nor repeated.
type Query struct {
	State  State  // Pending (the default), Running or Dead
	Target string // only this target; empty: all
	Limit  int    // 1 to 1000; a page may be shorter without being the last
	Cursor string // empty: from the start; else the Cursor of the page before
}

// Page is one page of jobs. An empty Cursor means that it was the last one.
type Page struct {
	Jobs   []Info
	Cursor string
}

// Result says what became of a Cancel or Reschedule.
type Result string

// The results of Cancel and Reschedule, as the admin API names them.
const (
	ResultDone     Result = "done"
	ResultRunning  Result = "running"
	ResultFinished Result = "finished"
	ResultUnknown  Result = "unknown"
)

// Change is the definite answer to a Cancel or Reschedule: it was done, or
// the job is running (Attempt and Owner say where), or it has ended, or it is
// not known.
type Change struct {
	ID      string
	Result  Result
	Attempt uint32
	Owner   string
}

// Cancellation is one request to remove a job. Who has looked at the job before
// says what it was: the ID may name another one by now.
type Cancellation struct {
	ID string
	// Incarnation, unless zero, is that of the job that is meant. If the ID names
	// another one, the job is unknown and nothing changes.
	Incarnation uint64
	// State, unless empty, is the one in which the job goes, Pending or Dead. In
	// the other one it stays, and is finished.
	State State
}

// ByIDs returns cancellations of whatever jobs have these ids.
func ByIDs(ids ...string) []Cancellation {
	list := make([]Cancellation, len(ids))
	for i, id := range ids {
		list[i].ID = id
	}
	return list
}

// Reschedule is one request to change a due time.
type Reschedule struct {
	ID          string
	Incarnation uint64 // as of a Cancellation
	Due         Time
	Requeue     bool
}
