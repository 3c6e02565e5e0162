package job

import "time"

// Time is a point in time in microseconds since the Unix epoch: the unit in
// which due times are compared and stored. Zero means "none".
type Time int64

// At converts t, rounding a fraction of a microsecond up, so that what is due
// at t never fires before t.
func At(t time.Time) Time {
	us := t.UnixMicro()
	if t.Nanosecond()%1000 != 0 {
		us++
	}
	return Time(us)
}

// Time converts t to a [time.Time] in UTC.
func (t Time) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Add returns t+d, with a fraction of a microsecond in d rounded up.
func (t Time) Add(d time.Duration) Time {
	us := d / time.Microsecond
	if d%time.Microsecond > 0 {
		us++
	}
	return t + Time(us)
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Microsecond }

// AckMode says what completes a delivery.
type AckMode uint8

// The acknowledgement modes of the Delay-Ack header.
const (
	AckWorker AckMode = iota // a worker settles the delivery
	AckStream                // the PubAck of the stream behind the target settles it
	AckNone                  // the flushed publish settles it
)

// Field is one header line, with the name spelt as the producer spelt it.
type Field struct{ Name, Value string }

// Job is what a producer asked for. It does not change with attempts.
type Job struct {
	// ID names the job: 1 to 255 bytes of any value. Empty before Put means
	// that the store mints one.
	ID string
	// Generated is set by Put when the store minted the ID. A generated id is
	// never sent again by its producer, so it is remembered more briefly.
	Generated bool
	// Incarnation tells apart jobs that use the same ID one after the other.
	// It rises with time; Put sets it when it is zero.
	Incarnation uint64
	// Target is the subject the job is published to, 1 to 255 bytes.
	Target string
	// Due is the time before which the job must not be delivered.
	Due Time
	// Expires is the time after which a first or further delivery is useless;
	// zero: never.
	Expires Time
	// Ack says what completes a delivery.
	Ack AckMode
	// AckWait is the lease of one delivery. Stores keep whole milliseconds,
	// rounded up; at most MaxAckWait.
	AckWait time.Duration
	// MaxAttempts is the number of deliveries before the job is dead; zero: no
	// limit.
	MaxAttempts uint32
	// Backoff holds the pauses between attempts, the last one repeating;
	// empty: exponential with jitter. Kept in microseconds, rounded up.
	Backoff []time.Duration
	// ReplyTo is the subject that gets the worker's result; empty: none.
	ReplyTo string
	// Header holds the producer's headers that travel with the job, trace
	// context included, in the order they are sent.
	Header []Field
	// Payload is the message body.
	Payload []byte
	// Journal is the id of the bridge that keeps a copy in its journal; empty: none
	// does. At most 64 bytes.
	Journal string
	// Replace makes Put replace a job that is not running. Not part of the record.
	Replace bool
}

// MaxAckWait is the longest lease that a record can hold.
const MaxAckWait = 49 * 24 * time.Hour

// State is where a job is in its life.
type State string

// The states of a job as the admin API and the command line name them.
const (
	Pending   State = "pending"
	Running   State = "running"
	Done      State = "done"
	Dead      State = "dead"
	Cancelled State = "cancelled"
)

// Where a store says that it holds a job: the "stored" field of the reply.
const (
	StoredRedis  = "redis"
	StoredLocal  = "local"       // fsynced in a log of this bridge
	StoredBoth   = "redis+local" // in Redis and in this bridge's journal
	StoredMemory = "memory"
)

// Ref names one delivery of one job. Settling needs the exact present Ref: a
// Ref of an older attempt, of another incarnation or with another nonce
// changes nothing.
type Ref struct {
	ID          string
	Shard       uint16 // where the store keeps the job; the store sets it
	Generated   bool
	Incarnation uint64
	Attempt     uint32 // 1 for the first delivery
	Nonce       uint64 // random per delivery, never zero
}

// Is reports whether r and o name the same delivery, wherever it is kept.
func (r Ref) Is(o Ref) bool { return r.Anywhere() == o.Anywhere() }

// Anywhere is r without where a store keeps the job: another store may have taken
// it over meanwhile. It is what names a delivery in a map.
func (r Ref) Anywhere() Ref {
	r.Shard = 0
	return r
}

// Delivery is a job under a lease.
type Delivery struct {
	Job
	Shard    uint16
	Attempt  uint32 // 1 for the first delivery
	Base     uint32 // attempts before the last requeue: Attempt-Base counts against MaxAttempts
	Nonce    uint64
	Next     Time // when this attempt was due; zero when Expired returns the delivery
	Owner    string
	Deadline Time // when the lease runs out
	Fallback bool // this bridge's disk stood in for the store that bridges share
}

// Ref returns the delivery's token.
func (d *Delivery) Ref() Ref {
	return Ref{ID: d.ID, Shard: d.Shard, Generated: d.Generated, Incarnation: d.Incarnation, Attempt: d.Attempt, Nonce: d.Nonce}
}

// LastAttempt reports whether the job may not be delivered again after this
// delivery fails.
func (d *Delivery) LastAttempt() bool {
	return d.MaxAttempts > 0 && d.Attempt-d.Base >= d.MaxAttempts
}

// Info is what a store knows of a job.
type Info struct {
	Job
	State   State
	Shard   uint16
	Attempt uint32 // deliveries so far, the present one included
	Base    uint32
	Nonce   uint64 // of the present delivery; zero unless running
	Owner   string // who holds the lease; empty unless running
	Next    Time   // pending: time of the next attempt; running: end of the lease; else when the job ended
	Reason  string // dead: why
	Stored  string // one of the Stored constants
}

// Ref returns the present delivery's token; it is meaningful while running.
func (i *Info) Ref() Ref {
	return Ref{ID: i.ID, Shard: i.Shard, Generated: i.Generated, Incarnation: i.Incarnation, Attempt: i.Attempt, Nonce: i.Nonce}
}
