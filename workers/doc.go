// Package workers is the library for programs that run the jobs of delaybridge.
//
//	w, err := workers.New(nc, workers.Config{Queue: "mail", Subjects: []string{"mail.>"}, Concurrency: 10},
//		func(ctx context.Context, j *workers.Job) error { return send(ctx, j.Payload) })
//	...
//	err = w.Run(ctx) // until ctx is done, and then in order
//
// A worker owns its jobs: its heartbeats tell bridges what it runs, so that
// the jobs of one that dies are with another within a second, and a job that
// runs for hours keeps its lease. docs/workers.md describes the messages.
//
// # Outcomes
//
// What a handler returns decides what becomes of its job. Errors may be
// wrapped.
//
//	nil             done; the bytes of Job.SetResult go to the job's Delay-Reply-To
//	RetryAfter      again after that time
//	Discard         dead-letter at once, with the reason
//	Snooze          again after that time; the attempt is not charged
//	any other error again, by the job's backoff
//	a panic         the same; it is caught, and logged with its stack
//
// An outcome is sent until a bridge has confirmed it, across restarts of
// bridges and of NATS; the handler's slot is free meanwhile. While 1,024 and
// four per slot are unconfirmed no further handler starts.
//
// A job can be delivered more than once, so handlers must be safe to repeat. A
// job that is no longer the worker's (its process stood still for longer than
// the lease, it was cut off and taken for dead, or a newer delivery of the job
// has come) has its context cancelled with the cause ErrLost, its outcome is not
// taken, and Config.OnLost learns of it. A handler that does not heed its context
// keeps its slot until it returns.
//
// # Where jobs come from
//
// Bridges send jobs to a worker of their choice, to as many as it has slots
// for. What a bridge that does not know the worker yet publishes to its queue
// group is claimed when a slot is free for it, and given back after a second
// without one: another worker may have it. So that this is rare, bridges hear of
// the worker before it joins the group. A message on a subject of
// Config.Subjects that no bridge sent is given to the handler as well, with
// Attempt 0; its outcome goes nowhere.
//
// The worker needs permission to subscribe to its subjects and to its inbox,
// and to publish to delay.hb.<worker>, delay.bye.<worker> and delay.ack.>.
// Without delay.ping.<worker> its death is noticed later, without
// delay.job.<worker> it gets jobs through the queue group only: it says so once
// and works.
//
// # Stopping
//
// When Run's context is done, in this order: the worker leaves its subjects;
// jobs that have not begun go back; bridges are told what still runs; handlers
// run on for Config.Drain, and then get contexts cancelled with the cause
// ErrStopping, to give their jobs back by returning it; outcomes are confirmed,
// for 5 s at most; bridges are told that nothing runs any more.
package workers
