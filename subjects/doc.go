// Package subjects parses and builds the subjects and tokens that the bridge
// exchanges with NATS. They are a wire format: producers, workers and other
// bridges depend on every byte. The package is pure and uses the standard
// library only.
//
// # Intake
//
//	<prefix>.in.<delay>.<target>   after a delay
//	<prefix>.at.<time>.<target>    at a time
//	<prefix>.to.<target>           delay or time in a header
//
// The prefix has one or more tokens, the target too. [ParseRequest] splits,
// [ParseDelay] and [ParseTime] read the second token, [ParseHeaderDelay],
// [ParseHeaderTime] and [ParseNatsSchedule] read the headers, [CheckTarget]
// says whether the target may be published to.
//
// A delay is one or more numbers with a unit of ns, us (also µs), ms, s, m, h,
// d (24 hours) or w (7 days), in any order, added up: "1h30m". The unit is
// never optional, not even for zero. In headers a number may have a fraction;
// what is finer than a nanosecond rounds up, so that nothing is ever early.
//
// A time is Unix seconds (exactly 10 digits), Unix milliseconds (exactly 13
// digits) or 20261130T093000Z; in headers also RFC 3339.
//
// # Acknowledgement
//
//	<prefix>.ack.<bridge>.<token>
//
// A token names one delivery of one job. It is opaque to everybody but the
// bridges: base64url without padding of
//
//	version     4 bits (high), now 1
//	flags       4 bits (low): 1 = the store minted the id
//	store       1 byte: 'r' Redis, 'l' local
//	shard       2 bytes, big-endian
//	incarnation 8 bytes, big-endian
//	nonce       8 bytes, big-endian, never zero
//	attempt     uvarint, 1 to 2^32-1, in its shortest form
//	id          the rest, 1 to 255 bytes
//
// There is exactly one text for a delivery; [ParseToken] refuses all others.
//
// # Workers
//
//	<prefix>.hb.<worker>     heartbeats of a worker
//	<prefix>.bye.<worker>    its farewell
//	<prefix>.ping.<worker>   answered by it while it runs
//	<prefix>.job.<worker>    jobs for this worker, see Delay-Target
//	<prefix>.owner.<worker>  what it owns, told by bridges
//
// [Worker] and [WorkerWildcard] build them, [ParseWorker] reads them.
//
// # Other subjects
//
//	<prefix>.event.<name>         events, see [Event]
//	<prefix>.sys.bridge.<bridge>  answered by the bridge of that id, see [Presence]
//	<prefix>.sys.takeover         a bridge that drains asks its peers, see [Takeover]
//	<prefix>.sys.started          a bridge that starts names itself, see [Started]
package subjects
