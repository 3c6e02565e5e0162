// Package failover is a [job.Store] that outlives its better half: jobs are in
// Redis while that answers, and in a store with a log on this bridge's disk
// while it does not. docs/failover.md has the design.
//
// # Structure
//
// A Store has three others. The primary is Redis. The local store holds what
// Redis has not confirmed and all that has happened since it went. The mirror, in
// memory alone, is a copy of those of Redis' jobs that may be needed without it:
// due within the horizon, or running under this bridge's leases. It is passive: a
// job that is needed moves from there to the local store. What the local store
// holds is merged into Redis once that is back.
//
// # Promises
//
// Calls return within the hand-over time and the time of a commit of the log,
// whatever Redis does; a claim within that or the caller's deadline, and at once
// when the mode changes. What a result reports is durable in the store that it
// names. A job that may be in Redis while that cannot be reached is answered with
// [job.ErrUnavailable] or [job.Unreachable], never as unknown.
//
// # Concurrency
//
// A Store is safe for concurrent use. Besides the goroutine of Run it has none.
// The mode is one atomic value; calls read it when they begin and, under the
// gate, before they act on the local stores. The gate is held for writing only
// while the last states are merged, just before claims come from Redis again, and
// while a job is ended here that Redis ended as the mode changed.
package failover
