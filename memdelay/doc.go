// Package memdelay keeps delayed jobs in the memory of the process, and, if it
// is to, on its disk. A store made by [New] answers "memory" and forgets
// everything when the process ends. One made by [Open] answers "local": a call
// returns when what it changed is on disk, and after a crash at whatever moment
// Open finds it there. Neither has a timer or a clock. Times are an input;
// whoever drives it sleeps until the NextDue of its last claim.
//
// # Structure
//
// A job is one entry in a slab (48 bytes, found by a 32-bit slot number) and
// one string that holds its id and its record, see [job.AppendRecord]. A hash
// index finds the slot by id. Every pending job is in one min-heap of slots by
// the time of its next attempt: the one for what is scheduled, or the one of
// its target when it is set aside. Running jobs are in a heap by the end of
// their lease, dead jobs in one by when they died. What a first delivery adds
// (attempt, nonce, owner) is allocated then and stays with the job.
//
// Jobs that ended leave a note in one of two generations of maps, which rotate
// after the dedup window, or earlier when one is full. Where another store may
// hold a job too, a verdict is kept beside it, for each incarnation of an id and
// until that store has taken it, see [Store.Export].
//
// # Disk
//
// A directory holds the segments of a log (package wal) and snapshots. A call
// appends a record per job that it changed, with the state after it; the table
// is in logrecord.go. A snapshot goes with the segment that was begun before it;
// both together are the whole state. It is written in slices while calls go on,
// so records may be applied to a state that has them already: they say what is,
// not what changed, and those of another incarnation do nothing.
//
// The newest snapshot and the one before are kept, with the log from the latter
// on. Before a new one is written, the newest is read and checked, and the one
// before removed. A snapshot that is damaged is replaced by the one before;
// anything else that cannot be read is an error of Open, which then changes
// nothing. Inspect says what is there, Salvage copies what can be read.
//
// # Concurrency
//
// One mutex guards everything. It is held for one batch, or by List and by
// snapshots for one slice, so that no call waits long for another. It is never
// held for the disk. A durable store has two goroutines, the log's and one for
// snapshots, which Close ends.
package memdelay
