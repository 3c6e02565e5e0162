package wal

import (
	"errors"
	"log/slog"
	"time"
)

// State says what became of the job that a Record is about.
type State uint8

// The states of a record. The log carries them; what they mean is the store's affair.
const (
	Active   State = 1 + iota
	Paused         // its target is paused
	Evicted        // cancelled or dead
	Done           // completed
	Migrated       // moved to another store
)

var stateNames = [...]string{Active: "active", Paused: "paused", Evicted: "evicted", Done: "done", Migrated: "migrated"}

func (s State) String() string {
	if s == 0 || int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// Record is one entry of the log. Data is opaque here.
type Record struct {
	ID    string // at most 65,535 bytes
	Due   int64  // nanoseconds since the Unix epoch; zero: none
	State State
	Data  []byte
}

// Position is a place in the log of one process: the end of an Append. Later ones
// are greater; zero is always durable.
type Position uint64

// The errors that callers tell apart with errors.Is.
var (
	ErrPoisoned = errors.New("the log could not be synced and takes nothing more until a restart")
	ErrDiskFull = errors.New("disk full")
	ErrDamaged  = errors.New("the log is damaged")
	ErrLocked   = errors.New("in use by another process")
	ErrClosed   = errors.New("the log is closed")
)

// Options of a Log; the zero value is good.
type Options struct {
	// SegmentBytes is the size at which a segment ends and the next begins; zero:
	// 64 MiB. Disk space is taken in steps of 1 MiB, or of SegmentBytes if less.
	SegmentBytes int64
	FS           FS           // nil: OS
	Logger       *slog.Logger // nil: nothing is logged
	// OnSync is called after every fdatasync of records; nil: no call. It must not block.
	OnSync func(took time.Duration, batches, bytes int)
}

const (
	defaultSegment = 64 << 20
	zeroStep       = 1 << 20 // how far ahead zeros are written
	batchBytes     = 1 << 20 // a batch of this size takes no further Append
	batchLimit     = 16 << 20
	retryEvery     = 250 * time.Millisecond
)

func (o *Options) setDefaults() {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = defaultSegment
	}
	if o.FS == nil {
		o.FS = OS
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
