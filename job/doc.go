// Package job is the vocabulary that the other packages share: a delayed job,
// the store that holds jobs, and the errors that producers see. It uses the
// standard library only.
//
// # Life of a job
//
//	           Put              Claim             Settle Complete
//	(nothing) -----> pending -----------> running ---------------> done
//	                 ^  |  ^                 |  |
//	                 |  |  +-----------------+  +- Settle Bury --> dead
//	                 |  |  Settle Retry, Release, SetAside         |  |
//	                 |  +--- Cancel ---> cancelled <--- Cancel ----+  |
//	                 +------------- Reschedule (Requeue) -------------+
//
// A pending job is either scheduled (ordered by the time of its next attempt)
// or set aside (kept apart, by target, because its target takes nothing now).
// A running job carries a lease; every lease is a new [Ref], and whoever does
// not hold the present one can change nothing.
//
// # Record
//
// Stores keep a job as one record, see [AppendRecord] for its layout. What
// changes with every attempt (attempt, nonce, owner) is not part of it.
package job
