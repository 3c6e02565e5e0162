// Package redisdelay keeps jobs in Redis 7.0 or later: a [job.Store] whose
// every step is one Lua script on one shard, safe to repeat.
//
// # Promises
//
// What a call reports is confirmed under the persistence and replication that
// Redis is configured with (see [Store.Check]). A call goes out as one pipeline
// of one script per shard that it touches. Each script acts as a whole or not
// at all; a call over several shards does not. A call that fails for a passing
// reason (network, timeout, a failover, a script cache that was emptied) is
// repeated, under the same number, until its context ends. Then its outcome is
// unknown, but final: scripts carry a deadline, in Redis' time, after which
// they refuse to act, so a Redis that was stopped does not run old calls when
// it wakes.
//
// Before the first call of each new connection the store compares what meta holds
// with what Redis has confirmed to it, so that data which is gone or older than it
// was is noticed and reported (Options.OnDataLoss), and no number is used twice.
//
// The store has no goroutine of its own. It is safe for concurrent use; calls
// of one kind (Put, Claim, Settle, ...) follow one another.
//
// # Layout
//
// <p> is Options.Prefix, <s> a shard from 0 on. The braces put all keys of a
// shard into one slot of a cluster. Times are microseconds since the Unix epoch,
// which a score (a double) holds exactly until the year 2255. Numbers in binary
// values are big-endian.
//
//	<p>:format             HASH  version (1), shards
//	<p>:canary:<bridge>    STRING  what Probe wrote; it expires
//	<p>:{<s>}:due          ZSET  id -> time of the next attempt
//	<p>:{<s>}:wait:<t>     ZSET  likewise, for jobs set aside for the target <t>
//	<p>:{<s>}:waits        SET   the targets with a wait key
//	<p>:{<s>}:inf          ZSET  lease -> end of the lease
//	<p>:{<s>}:dead         ZSET  id -> time of death
//	<p>:{<s>}:job          HASH  id -> record, see job.AppendRecord
//	<p>:{<s>}:own          HASH  id -> run state
//	<p>:{<s>}:owner        HASH  id -> tag of the lease 8 bytes, its owner
//	<p>:{<s>}:done:0, :1   HASH  id -> what is remembered of a job that ended
//	<p>:{<s>}:fin:0, :1    STRING  the same for completed jobs with generated ids
//	<p>:{<s>}:meta         HASH  see below
//
// and for people, written by WriteOwners alone and read by nothing:
//
//	<p>:worker:{<w>}:task    SET     the ids of the jobs that the worker <w> has
//	<p>:worker:{<w>}:hb      STRING  the bridge that heard it last
//	<p>:task:{<id>}:workerId STRING  the worker that has the job
//
// A job that lives has a record and is in exactly one of the sorted sets, by its
// id or, while it runs, by its lease: the id, followed by a tag of 8 bytes, of
// which 6 are random and 2 are the code of a bridge. The nonce of a delivery is the
// tag mixed with incarnation and attempt, so that a Ref which is not exactly the
// present one leads to a lease that is not there. That lets one ZREM check and
// end the leases of a whole batch, and nothing else is written per delivery of a
// bridge that has the code of its name, which meta tells.
//
// All other leases are in the owner hash, until they end: those of workers, and of
// a bridge whose code another one has. An entry counts only for the lease with its
// tag, and before the code. A code is given to a bridge that needs it, at most 64 on a
// shard, and becomes free when no lease relies on it: looked for when a bridge
// lacks one, at most once a minute.
//
// A run state exists once an attempt has ended without completing the job:
//
//	attempts that ended 4 bytes, those before the budget began 4, time of the
//	next attempt 8, for a dead job the reason
//
// An id is in a done hash only while no job of that id lives:
//
//	kind d (done) or c (cancelled), tag 8 bytes, incarnation 8, attempt 4, time
//	of the end 8, due 8, "1" for a generated id or else "0", target
//
// The two take turns: one is written to for a dedup window, and when the turn
// changes the other one, older than a window by then, is dropped whole. The fin
// strings serve to recognise a completion that is sent again: they are such
// entries one after the other, each behind its length (2 bytes) and its id (12).
// They take turns also when one is full, so they hold the newest.
//
// meta holds epoch (random, set when the shard is first used: another one means
// that the data is not what it was), gen and rot (which done hash is written
// to, and since when), fin (which fin string), owner:<2 bytes> (the bridge that
// has this code), swept (when codes were last freed), and per script that writes and bridge <script>:<bridge>,
// the number of the last call, 16 digits, and its result in MessagePack; and
// merged:<bridge>, what its last Merge took: of each job the length of its id (1
// byte), the id, and the incarnation (8 bytes).
//
// An id of the form of generated ids is kept in the shard that it names, modulo
// the number of shards; any other one in the shard given by its 32-bit FNV-1a
// hash, modulo likewise. So the number of shards cannot change under data.
package redisdelay
