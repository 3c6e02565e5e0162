package memdelay

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Options configures a Store. The zero value is usable.
type Options struct {
	// DedupWindow is how long the id of a completed job counts as a
	// duplicate; zero: 2 minutes.
	DedupWindow time.Duration
	// MaxJobs is how many jobs may be held, dead ones included, those that
	// were adopted not; zero: 1,000,000.
	MaxJobs int
	// MaxBytes is how many bytes the ids and records of the same jobs may
	// have, together with the verdicts that are owed; zero: 1 GiB.
	MaxBytes int64
	// DoneCap is how many ended jobs whose ids the producers chose are
	// remembered at least, within the window; zero: 1,000,000.
	DoneCap int
	// DoneGeneratedCap is the same for generated ids, which no producer sends
	// again; zero: 100,000.
	DoneGeneratedCap int
	// Nonce draws the nonce of a delivery, which may not be zero; nil: random.
	Nonce func(incarnation uint64, attempt uint32, owner string) uint64
	// Verdicts makes the store keep how a job ended that another store may
	// hold too, until Forget, Discard or PruneVerdicts; see [Store.Export].
	Verdicts bool

	// The rest is for [Open] alone.

	// FS is where the directory is; nil: the operating system's.
	FS wal.FS
	// Logger gets what an operator should know of; nil: nobody does.
	Logger *slog.Logger
	// OnSync is called after every sync of the log; may be nil.
	OnSync func(took time.Duration, batches, bytes int)
	// SegmentBytes is the size of a file of the log; zero: 4 MiB.
	SegmentBytes int64
	// SnapshotBytes is how much the log must have grown at least since the
	// last snapshot before there is another; zero: 2 MiB.
	SnapshotBytes int64
}

func (o Options) withDefaults() Options {
	o.DedupWindow = cmp.Or(o.DedupWindow, 2*time.Minute)
	o.MaxJobs = cmp.Or(o.MaxJobs, 1_000_000)
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<30)
	o.DoneCap = cmp.Or(o.DoneCap, 1_000_000)
	o.DoneGeneratedCap = cmp.Or(o.DoneGeneratedCap, 100_000)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 4<<20)
	o.SnapshotBytes = cmp.Or(o.SnapshotBytes, 2<<20)
	if o.FS == nil {
		o.FS = wal.OS
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// errClosed is what every call returns after Close.
var errClosed = job.ErrUnavailable.With("memory store is closed")

// Store holds jobs. Make one with [New] or [Open].
type Store struct {
	options Options
	stored  string // what it answers, one of the Stored constants
	disk    *disk  // nil: in memory only

	mu     sync.Mutex
	closed bool
	held
	nonces nonces
	buf    []byte // to build a record in
}

// held is all that a Store knows of jobs.
type held struct {
	entries   slab
	ids       index
	scheduled heap
	waiting   map[string]*heap // by target; never an empty heap
	running   heap
	dead      heap  // by when they died
	chosen    ended // jobs that ended, with ids that producers chose
	generated ended // the same, with generated ids
	verdicts  verdicts
	urgent    map[uint32]struct{} // the slots of urgent jobs, with Options.Verdicts
	adoptions int                 // how many jobs are adopted
	ownBytes  int64               // of the blobs of the others
	allBytes  int64               // of all blobs
	now       job.Time
	seen      uint64 // the latest incarnation that was restored
}

var _ job.Store = (*Store)(nil)

// New returns an empty Store that keeps everything in memory only.
func New(o Options) *Store {
	s := &Store{options: o.withDefaults(), stored: job.StoredMemory}
	s.clear()
	return s
}

// clear makes the store empty.
func (s *Store) clear() {
	o := &s.options
	s.held = held{
		waiting:   map[string]*heap{},
		chosen:    newEnded(o.DedupWindow, o.DoneCap),
		generated: newEnded(o.DedupWindow, o.DoneGeneratedCap),
		verdicts:  newVerdicts(),
		urgent:    map[uint32]struct{}{},
	}
	s.ids = newIndex(&s.entries)
	s.scheduled.entries = &s.entries
	s.running.entries = &s.entries
	s.dead.entries = &s.entries
}

// Close makes every later call fail. What a durable store was told is on disk
// when it returns.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed || s.disk == nil {
		return nil
	}
	return s.disk.close()
}

// lock begins a call that changes nothing; unless it returns an error, the
// caller must unlock s.mu.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	return nil
}

// observe notes the time of a call: ended jobs are forgotten by the latest.
func (s *Store) observe(now job.Time) {
	if now <= s.now {
		return
	}
	s.now = now
	if s.disk != nil {
		s.chosen.expire(now)
		s.generated.expire(now)
		s.checkIdle()
	}
}

// queue returns the heap that holds e, nil when it is in none yet.
func (s *Store) queue(e *entry) *heap {
	switch e.place {
	case scheduled:
		return &s.scheduled
	case setAside:
		return s.waiting[e.target()]
	case running:
		return &s.running
	case dead:
		return &s.dead
	}
	return nil
}

// move takes the entry in slot out of where it is and puts it where place
// says, to be due at next.
func (s *Store) move(slot uint32, place place, next job.Time) {
	e := s.entries.at(slot)
	s.detach(e)
	e.place, e.next = place, next
	if q := s.queue(e); q != nil {
		q.push(slot)
	} else if place == setAside {
		q := &heap{entries: &s.entries}
		s.waiting[e.target()] = q
		q.push(slot)
	}
}

// detach takes e out of its heap.
func (s *Store) detach(e *entry) {
	q := s.queue(e)
	if q == nil {
		return
	}
	q.remove(e.pos)
	if e.place == setAside && q.len() == 0 {
		delete(s.waiting, e.target())
	}
}

// end forgets the entry in slot, but for a note of how it ended.
func (s *Store) end(slot uint32, cancelled bool, now job.Time) {
	e := s.entries.at(slot)
	id, n := e.note(cancelled, now)
	owed := s.owes(e)
	s.detach(e)
	s.drop(slot)
	s.remember(id, n, owed)
	s.logEnd(id, &n, owed)
}

// owes reports whether another store may want to know how e ends.
func (s *Store) owes(e *entry) bool {
	return s.options.Verdicts && (e.shared() || !e.generated())
}

// remember notes that id ended.
func (s *Store) remember(id string, n note, owed bool) {
	if n.generated {
		s.generated.add(n.at, id, n)
	} else {
		s.chosen.add(n.at, id, n)
	}
	if owed {
		s.verdicts.add(id, n)
	}
}

// forget drops the entry in slot without a trace.
func (s *Store) forget(slot uint32, as wal.State) {
	e := s.entries.at(slot)
	s.logGone(e.id(), e.incarnation(), as)
	s.detach(e)
	s.drop(slot)
}

// drop frees slot, which is in no heap.
func (s *Store) drop(slot uint32) {
	s.count(slot, -1)
	s.ids.remove(slot)
	s.entries.free(slot)
}

// count adds the entry in slot to what is counted, or takes it off again. It
// comes before and after every change of the blob and of the marks.
func (s *Store) count(slot uint32, sign int) {
	e := s.entries.at(slot)
	size := int64(sign * len(e.blob))
	s.allBytes += size
	if e.adopted() {
		s.adoptions += sign
	} else {
		s.ownBytes += size
	}
	if sign < 0 {
		delete(s.urgent, slot)
	} else if s.options.Verdicts && e.urgent() {
		s.urgent[slot] = struct{}{}
	}
}

// change logs that the entry in slot is in another state, which other stores
// that may have the job do not know.
func (s *Store) change(slot uint32) {
	if e := s.entries.at(slot); e.marks&markSuspect != 0 {
		s.mark(slot, markChanged)
	}
	s.logChange(slot)
}

// mark adds marks to the entry in slot.
func (s *Store) mark(slot uint32, m marks) {
	s.count(slot, -1)
	s.entries.at(slot).marks |= m
	s.count(slot, +1)
}

// recall returns the note of how id ended, nil if there is none.
func (s *Store) recall(id string) *note {
	if n := s.chosen.get(id, s.now); n != nil {
		return n
	}
	return s.generated.get(id, s.now)
}

// nonce draws the nonce of a delivery.
func (s *Store) nonce(incarnation uint64, attempt uint32, owner string) uint64 {
	if s.options.Nonce != nil {
		return s.options.Nonce(incarnation, attempt, owner)
	}
	return s.nonces.next()
}

// nonces hands out random numbers, read from the system in blocks.
type nonces struct {
	block [512]byte
	rest  []byte
}

// next returns a random number that is not zero.
func (n *nonces) next() uint64 {
	for {
		if len(n.rest) == 0 {
			rand.Read(n.block[:]) // never fails: it ends the program instead
			n.rest = n.block[:]
		}
		v := binary.NativeEndian.Uint64(n.rest)
		n.rest = n.rest[8:]
		if v != 0 {
			return v
		}
	}
}
