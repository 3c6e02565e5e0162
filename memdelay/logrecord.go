package memdelay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// The kinds of records in the log: the first byte of their data. The numbers
// are of fixed size and big-endian, unless they are varints.
//
//	job      place 1, marks 1, run, the job's record (job.AppendRecord)
//	change   place 1, marks 1, incarnation 8, due 8, run
//	end      flags 1, incarnation 8, due 8, at 8, nonce 8, attempt uvarint, target
//	gone     incarnation 8
//	settled  incarnation 8
//
//	run      next varint (after due), attempt uvarint, base uvarint,
//	         nonce 8 if running, text uvarint length and bytes if running or dead
//
// A change is of a job whose record stays, but for its due time. An end leaves
// a note, and a verdict where one is owed; gone leaves nothing. Settled drops a
// verdict. All but job do nothing unless the incarnation is the one held.
const (
	kindJob byte = 1 + iota
	kindChange
	kindEnd
	kindGone
	kindSettled
)

const (
	endCancelled byte = 1 << iota
	endGenerated
	endOwed
)

// recordOverhead is about what a record takes in the log beside id and data.
const recordOverhead = 24

// errLogRecord means that the data of a record cannot be read.
var errLogRecord = errors.New("record not readable: damaged, or written by a newer version")

// log adds a record to the batch of the present call, with the data that was
// appended to the arena since it had that length.
func (d *disk) add(id string, due job.Time, state wal.State, from int) {
	d.batch = append(d.batch, wal.Record{ID: id, Due: nanos(due), State: state, Data: d.arena[from:]})
}

// nanos is for people who inspect the log; nothing is computed from it.
func nanos(t job.Time) int64 {
	if t > math.MaxInt64/1000 || t < math.MinInt64/1000 {
		return 0
	}
	return int64(t) * 1000
}

// logJob logs the entry in slot, which is new.
func (s *Store) logJob(slot uint32) { s.logEntry(s.entries.at(slot)) }

func (s *Store) logEntry(e *entry) {
	if d := s.disk; d != nil {
		from := len(d.arena)
		d.arena = append(d.arena, kindJob, byte(e.place), byte(e.marks))
		d.arena = append(e.appendRun(d.arena), e.record()...)
		d.add(e.id(), e.due(), e.logState(), from)
	}
}

// logChange logs the entry in slot, whose record is in the log but for the due
// time.
func (s *Store) logChange(slot uint32) {
	if d := s.disk; d != nil {
		e, from := s.entries.at(slot), len(d.arena)
		d.arena = append(d.arena, kindChange, byte(e.place), byte(e.marks))
		d.arena = binary.BigEndian.AppendUint64(d.arena, e.incarnation())
		d.arena = binary.BigEndian.AppendUint64(d.arena, uint64(e.due()))
		d.arena = e.appendRun(d.arena)
		d.add(e.id(), e.due(), e.logState(), from)
	}
}

// logEnd logs that id ended.
func (s *Store) logEnd(id string, n *note, owed bool) {
	if d := s.disk; d != nil {
		from, flags, state := len(d.arena), byte(0), wal.Done
		if n.cancelled {
			flags, state = endCancelled, wal.Evicted
		}
		if n.generated {
			flags |= endGenerated
		}
		if owed {
			flags |= endOwed
		}
		d.arena = append(d.arena, kindEnd, flags)
		for _, v := range [...]uint64{n.incarnation, uint64(n.due), uint64(n.at), n.nonce} {
			d.arena = binary.BigEndian.AppendUint64(d.arena, v)
		}
		d.arena = append(binary.AppendUvarint(d.arena, uint64(n.attempt)), n.target...)
		d.add(id, n.due, state, from)
	}
}

// logGone logs that the job is held no more and leaves no note.
func (s *Store) logGone(id string, incarnation uint64, as wal.State) {
	s.logShort(kindGone, id, incarnation, as)
}

// logSettled logs that the verdict is owed no more.
func (s *Store) logSettled(id string, incarnation uint64) {
	s.logShort(kindSettled, id, incarnation, wal.Migrated)
}

func (s *Store) logShort(kind byte, id string, incarnation uint64, state wal.State) {
	if d := s.disk; d != nil {
		from := len(d.arena)
		d.arena = binary.BigEndian.AppendUint64(append(d.arena, kind), incarnation)
		d.add(id, 0, state, from)
	}
}

func (e *entry) logState() wal.State {
	if e.place == dead {
		return wal.Evicted
	}
	return wal.Active
}

// appendRun appends what changes with attempts.
func (e *entry) appendRun(dst []byte) []byte {
	var r run
	if e.run != nil {
		r = *e.run
	}
	dst = binary.AppendVarint(dst, int64(e.next-e.due()))
	dst = binary.AppendUvarint(dst, uint64(r.attempt))
	dst = binary.AppendUvarint(dst, uint64(r.base))
	if e.place == running {
		dst = binary.BigEndian.AppendUint64(dst, r.nonce)
	}
	if e.place == running || e.place == dead {
		dst = append(binary.AppendUvarint(dst, uint64(len(r.text))), r.text...)
	}
	return dst
}

// apply does to the store, which has no heaps yet, what r says.
func (s *Store) apply(r *wal.Record) error {
	data := &reader{b: r.Data}
	switch kind := data.byte(); kind {
	case kindJob:
		s.applyJob(r.ID, data)
	case kindChange:
		s.applyChange(r.ID, data)
	case kindEnd:
		s.applyEnd(r.ID, data)
	case kindGone:
		if slot := s.present(r.ID, data.uint64()); slot != 0 {
			s.drop(slot)
		}
	case kindSettled:
		s.verdicts.remove(r.ID, data.uint64())
	default:
		data.bad = true
	}
	if data.bad {
		return fmt.Errorf("job %q: %w", r.ID, errLogRecord)
	}
	return nil
}

// present returns the slot of that incarnation of id, zero when it is not held.
func (s *Store) present(id string, incarnation uint64) uint32 {
	if slot := s.ids.find(id); slot != 0 && s.entries.at(slot).incarnation() == incarnation {
		return slot
	}
	return 0
}

func (s *Store) applyJob(id string, data *reader) {
	im := image{Place: place(data.byte()), Marks: marks(data.byte())}
	data.run(&im)
	if data.bad || len(data.b) <= job.OffTarget || len(id) > math.MaxUint8 {
		data.bad = true
		return
	}
	if _, err := job.RecordTarget(string(data.b)); err != nil {
		data.bad = true
		return
	}
	im.Blob = string(append(append(append(s.buf[:0], byte(len(id))), id...), data.b...))
	s.restore(&im)
}

func (s *Store) applyChange(id string, data *reader) {
	im := image{Place: place(data.byte()), Marks: marks(data.byte())}
	incarnation, due := data.uint64(), data.uint64()
	data.run(&im)
	slot := s.present(id, incarnation)
	if data.bad || slot == 0 {
		return
	}
	e := s.entries.at(slot)
	if im.Blob = e.blob; due != uint64(e.due()) {
		im.Blob = s.withDue(e, job.Time(due))
	}
	s.restore(&im)
}

func (s *Store) applyEnd(id string, data *reader) {
	flags := data.byte()
	n := note{cancelled: flags&endCancelled != 0, generated: flags&endGenerated != 0}
	n.incarnation, n.due, n.at, n.nonce = data.uint64(), job.Time(data.uint64()), job.Time(data.uint64()), data.uint64()
	n.attempt = uint32(data.uvarint())
	n.target = string(data.b)
	if data.bad {
		return
	}
	if slot := s.present(id, n.incarnation); slot != 0 {
		s.drop(slot)
	}
	s.now = max(s.now, n.at)
	s.seen = max(s.seen, n.incarnation)
	s.remember(id, n, flags&endOwed != 0)
}

// withDue returns the blob of e with another due time.
func (s *Store) withDue(e *entry, due job.Time) string {
	s.buf = append(s.buf[:0], e.blob...)
	binary.BigEndian.PutUint64(s.buf[1+len(e.id())+job.OffDue:], uint64(due))
	return string(s.buf)
}

// reader takes values off the front of b; bad is set once b is too short.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.take(uint64(n))
	return v
}

func (r *reader) varint() int64 {
	v := r.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// run reads what appendRun wrote; Next is still relative to the due time.
func (r *reader) run(im *image) {
	if im.Place == free || im.Place > dead {
		r.bad = true
		return
	}
	im.After, im.Attempt, im.Base = r.varint(), uint32(r.uvarint()), uint32(r.uvarint())
	if im.Place == running {
		im.Nonce = r.uint64()
	}
	if im.Place == running || im.Place == dead {
		im.Text = string(r.take(r.uvarint()))
	}
}
