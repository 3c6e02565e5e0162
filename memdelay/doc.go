// Package memdelay keeps delayed jobs in the memory of the process: a
// [job.Store] that answers "memory" and forgets everything when the process
// ends. It has no goroutine, no timer and no clock. Times are an input; whoever
// drives it sleeps until the NextDue of its last claim.
//
// # Structure
//
// A job is one entry in a slab (48 bytes, found by a 32-bit slot number) and
// one string that holds its id and its record, see [job.AppendRecord]. A hash
// index finds the slot by id. Every pending job is in one min-heap of slots by
// the time of its next attempt: the one for what is scheduled, or the one of
// its target when it is set aside. Running jobs are in a heap by the end of
// their lease. Dead jobs are in one by when they died. What a first delivery adds (attempt,
// nonce, owner) is allocated then and stays with the job.
//
// Jobs that ended leave a note in one of two generations of maps, which rotate
// after the dedup window, or earlier when one is full.
//
// # Concurrency
//
// One mutex guards everything. It is held for one batch, or by List for one
// slice of the slab, so that no call waits long for another.
package memdelay
