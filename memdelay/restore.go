package memdelay

import "github.com/delaybridge/delaybridge/job"

// image is an entry as snapshots keep it.
type image struct {
	Blob          string
	Place         place
	Marks         marks
	After         int64 // the next time, after the due time
	Attempt, Base uint32
	Nonce         uint64
	Text          string
}

// image returns e as snapshots keep it.
func (e *entry) image() image {
	im := image{Blob: e.blob, Place: e.place, Marks: e.marks, After: int64(e.next - e.due())}
	if e.run != nil {
		im.Attempt, im.Base, im.Nonce, im.Text = e.run.attempt, e.run.base, e.run.nonce, e.run.text
	}
	return im
}

// restore makes im what is held under its id. The store has no heaps yet.
func (s *Store) restore(im *image) {
	fresh := entry{blob: im.Blob}
	slot := s.ids.find(fresh.id())
	if slot == 0 {
		slot = s.entries.alloc()
		s.entries.at(slot).blob = im.Blob
		s.ids.add(slot)
	} else {
		s.count(slot, -1)
	}
	e := s.entries.at(slot)
	e.blob, e.place, e.marks, e.run = im.Blob, im.Place, im.Marks, nil
	e.next = e.due() + job.Time(im.After)
	if r := (run{im.Attempt, im.Base, im.Nonce, im.Text}); r != (run{}) || e.place == running || e.place == dead {
		e.run = &r
	}
	s.count(slot, +1)
	s.seen = max(s.seen, e.incarnation())
	if e.adopted() {
		s.revive(e)
	}
}

// revive forgets that the job e has ended: another store knows better.
func (s *Store) revive(e *entry) {
	s.chosen.drop(e.id(), e.incarnation())
	s.generated.drop(e.id(), e.incarnation())
	s.verdicts.remove(e.id(), e.incarnation())
}

// order builds the heaps of a store that was restored, and orders the rest.
func (s *Store) order() {
	for slot := range uint32(s.entries.slots()) {
		e := s.entries.at(slot)
		if e.place == free {
			continue
		}
		q := s.queue(e)
		if q == nil {
			q = &heap{entries: &s.entries}
			s.waiting[e.target()] = q
		}
		q.slots = append(q.slots, slot)
	}
	for _, q := range s.waiting {
		q.order()
	}
	s.scheduled.order()
	s.running.order()
	s.dead.order()
	s.verdicts.order()
}
