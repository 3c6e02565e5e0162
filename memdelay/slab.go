package memdelay

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/delaybridge/delaybridge/job"
)

// place is where an entry is kept.
type place uint8

const (
	free place = iota
	scheduled
	setAside
	running
	dead
)

// entry is one job. It stays in its slot for life.
type entry struct {
	blob  string   // one byte for the length of the id, the id, the record
	next  job.Time // pending: next attempt; running: end of lease; dead: since
	run   *run     // nil before the first delivery
	pos   uint32   // position in the heap of its place
	chain uint32   // next slot with the same hash of the id; next free slot
	place place
	marks marks
}

// marks say where a job came from.
type marks uint8

const (
	// markReplace: it was put to replace one of the same id.
	markReplace marks = 1 << iota
	// markAdopted: it was taken over from another store, which knows it.
	markAdopted
	// markSuspect: another store may have taken it too.
	markSuspect
	// markChanged: its state is not the one that the other store may have it in.
	markChanged
)

// run is what deliveries add to a job.
type run struct {
	attempt, base uint32
	nonce         uint64 // zero unless running
	text          string // running: the owner; dead: the reason
}

// appendBlob appends the blob of j to dst.
func appendBlob(dst []byte, j *job.Job) []byte {
	dst = append(dst, byte(len(j.ID)))
	dst = append(dst, j.ID...)
	return job.AppendRecord(dst, j)
}

func (e *entry) id() string     { return e.blob[1 : 1+int(e.blob[0])] }
func (e *entry) record() string { return e.blob[1+int(e.blob[0]):] }

func (e *entry) incarnation() uint64 { return bigEndian(e.record()[job.OffIncarnation:]) }
func (e *entry) due() job.Time       { return job.Time(bigEndian(e.record()[job.OffDue:])) }

func (e *entry) target() string {
	r := e.record()[job.OffTarget:]
	return r[1 : 1+int(r[0])]
}

func (e *entry) generated() bool { return job.RecordGenerated(e.record()) }

// runs returns the run of e, a new one before the first delivery.
func (e *entry) runs() *run {
	if e.run == nil {
		e.run = &run{}
	}
	return e.run
}

func (e *entry) adopted() bool { return e.marks&markAdopted != 0 }

// shared reports whether another store knows the job, or may.
func (e *entry) shared() bool { return e.marks&(markAdopted|markSuspect) != 0 }

// urgent reports whether another store may act on what it has under the id,
// which is not what is here.
func (e *entry) urgent() bool {
	return e.marks&(markAdopted|markReplace) != 0 || e.marks&markSuspect != 0 && e.marks&markChanged != 0
}

func (e *entry) attempt() uint32 {
	if e.run == nil {
		return 0
	}
	return e.run.attempt
}

// is reports whether r is the present delivery of e.
func (e *entry) is(r *job.Ref) bool {
	return e.place == running && e.run.nonce == r.Nonce && e.run.attempt == r.Attempt && e.incarnation() == r.Incarnation
}

func bigEndian(s string) uint64 {
	var b [8]byte
	copy(b[:], s)
	return binary.BigEndian.Uint64(b[:])
}

const chunkLen = 1024

// slab holds entries in chunks that never move, so that growing copies
// nothing. Slot 0 is never used.
type slab struct {
	chunks []*[chunkLen]entry
	unused uint32 // first free slot, zero: none
	count  int
}

func (s *slab) at(slot uint32) *entry { return &s.chunks[slot/chunkLen][slot%chunkLen] }

// slots is the number of slots, used or not.
func (s *slab) slots() int { return len(s.chunks) * chunkLen }

func (s *slab) alloc() uint32 {
	if s.unused == 0 {
		s.grow()
	}
	slot := s.unused
	e := s.at(slot)
	s.unused, e.chain = e.chain, 0
	s.count++
	return slot
}

func (s *slab) grow() {
	first := uint32(s.slots())
	s.chunks = append(s.chunks, new([chunkLen]entry))
	for slot := first + chunkLen - 1; slot >= max(first, 1); slot-- {
		s.at(slot).chain = s.unused
		s.unused = slot
	}
}

func (s *slab) free(slot uint32) {
	*s.at(slot) = entry{chain: s.unused}
	s.unused = slot
	s.count--
}

// index finds slots by id. The map goes by a hash of 32 bits, which makes it a
// third of the size of one by id; entries whose hashes meet form a chain.
type index struct {
	entries *slab
	hash    func(id string) uint32
	first   map[uint32]uint32
}

func newIndex(entries *slab) index {
	seed := maphash.MakeSeed()
	hash := func(id string) uint32 { return uint32(maphash.String(seed, id)) }
	return index{entries, hash, map[uint32]uint32{}}
}

// find returns the slot of id, zero when there is none.
func (x *index) find(id string) uint32 {
	slot := x.first[x.hash(id)]
	for slot != 0 {
		e := x.entries.at(slot)
		if e.id() == id {
			return slot
		}
		slot = e.chain
	}
	return 0
}

// add makes the entry in slot known by its id.
func (x *index) add(slot uint32) {
	e := x.entries.at(slot)
	h := x.hash(e.id())
	e.chain = x.first[h]
	x.first[h] = slot
}

// remove undoes add.
func (x *index) remove(slot uint32) {
	e := x.entries.at(slot)
	h := x.hash(e.id())
	if before := x.first[h]; before != slot {
		for x.entries.at(before).chain != slot {
			before = x.entries.at(before).chain
		}
		x.entries.at(before).chain = e.chain
	} else if e.chain != 0 {
		x.first[h] = e.chain
	} else {
		delete(x.first, h)
	}
}
