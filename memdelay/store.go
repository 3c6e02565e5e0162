package memdelay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// Options configures a Store. The zero value is usable.
type Options struct {
	// DedupWindow is how long the id of a completed job counts as a
	// duplicate; zero: 2 minutes.
	DedupWindow time.Duration
	// MaxJobs is how many jobs may be held, dead ones included; zero:
	// 1,000,000.
	MaxJobs int
	// DoneCap is how many ended jobs whose ids the producers chose are
	// remembered at least, within the window; zero: 1,000,000.
	DoneCap int
	// DoneGeneratedCap is the same for generated ids, which no producer sends
	// again; zero: 100,000.
	DoneGeneratedCap int
}

func (o Options) withDefaults() Options {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	if o.DedupWindow == 0 {
		o.DedupWindow = 2 * time.Minute
	}
	set(&o.MaxJobs, 1_000_000)
	set(&o.DoneCap, 1_000_000)
	set(&o.DoneGeneratedCap, 100_000)
	return o
}

// errClosed is what every call returns after Close.
var errClosed = job.ErrUnavailable.With("memory store is closed")

// Store holds jobs in memory. Make one with [New].
type Store struct {
	maxJobs int
	full    *job.Error // the answer beyond maxJobs

	mu        sync.Mutex
	closed    bool
	entries   slab
	ids       index
	scheduled heap
	waiting   map[string]*heap // by target; never an empty heap
	running   heap
	dead      heap  // by when they died
	chosen    ended // jobs that ended, with ids that producers chose
	generated ended // the same, with generated ids
	now       job.Time
	buf       []byte // to build a record in
	nonces    nonces
}

var _ job.Store = (*Store)(nil)

// New returns an empty Store.
func New(o Options) *Store {
	o = o.withDefaults()
	s := &Store{
		maxJobs:   o.MaxJobs,
		full:      job.ErrFull.With("memory store holds its limit of %d jobs; wait for jobs to end or raise the limit", o.MaxJobs),
		waiting:   map[string]*heap{},
		chosen:    newEnded(o.DedupWindow, o.DoneCap),
		generated: newEnded(o.DedupWindow, o.DoneGeneratedCap),
	}
	s.ids = newIndex(&s.entries)
	s.scheduled.entries = &s.entries
	s.running.entries = &s.entries
	s.dead.entries = &s.entries
	return s
}

// Close makes every later call fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// lock begins a call; unless it returns an error, the caller must unlock s.mu.
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
func (s *Store) observe(now job.Time) { s.now = max(s.now, now) }

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
	if n.generated {
		s.generated.add(now, id, n)
	} else {
		s.chosen.add(now, id, n)
	}
	s.forget(slot)
}

// forget drops the entry in slot without a trace.
func (s *Store) forget(slot uint32) {
	s.detach(s.entries.at(slot))
	s.ids.remove(slot)
	s.entries.free(slot)
}

// recall returns the note of how id ended, nil if there is none.
func (s *Store) recall(id string) *note {
	if n := s.chosen.get(id, s.now); n != nil {
		return n
	}
	return s.generated.get(id, s.now)
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
