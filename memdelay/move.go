package memdelay

import (
	"context"
	"fmt"
	"iter"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Adopt takes jobs over from another store in exactly the state given, in place
// of whatever is held under their ids; no limit applies. Those that end with it,
// done or cancelled, need no more than [job.MergeItem] says. With
// Options.Verdicts how an adopted job ends is kept for the other store.
//
// The record of a job that is held with the same incarnation and due time stays
// as it is. An error of one job refuses the whole call.
func (s *Store) Adopt(ctx context.Context, jobs []job.Info) error {
	for i := range jobs {
		if err := adoptable(&jobs[i]); err != nil {
			return err
		}
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	for i := range jobs {
		s.adopt(&jobs[i])
	}
	return s.commit(ctx)
}

func adoptable(i *job.Info) error {
	if _, ok := placeOf(i.State); !ok && i.State != job.Done && i.State != job.Cancelled {
		return fmt.Errorf("memory store: adopt job %q: state %q is not known", i.ID, string(i.State))
	}
	if i.Incarnation == 0 {
		return fmt.Errorf("memory store: adopt job %q: it has no incarnation", i.ID)
	}
	return i.Check()
}

// placeOf returns the place of live jobs in that state.
func placeOf(state job.State) (place, bool) {
	switch state {
	case job.Pending:
		return scheduled, true
	case job.Running:
		return running, true
	case job.Dead:
		return dead, true
	}
	return free, false
}

func (s *Store) adopt(i *job.Info) {
	slot := s.ids.find(i.ID)
	to, live := placeOf(i.State)
	if !live {
		s.adoptEnd(slot, i)
		return
	}
	kept := false
	if slot == 0 {
		slot = s.entries.alloc()
		s.entries.at(slot).blob = s.blob(&i.Job)
		s.ids.add(slot)
	} else {
		e := s.entries.at(slot)
		s.detach(e)
		s.count(slot, -1)
		if kept = e.incarnation() == i.Incarnation && e.due() == i.Due; !kept {
			e.blob, e.marks = s.blob(&i.Job), 0
		}
	}
	e := s.entries.at(slot)
	e.place, e.marks = free, e.marks|markAdopted
	s.count(slot, +1)
	e.takeRun(i)
	s.move(slot, to, i.Next)
	s.revive(e)
	if kept {
		s.logChange(slot)
	} else {
		s.logJob(slot)
	}
}

// blob returns the blob of j.
func (s *Store) blob(j *job.Job) string {
	s.buf = appendBlob(s.buf[:0], j)
	return string(s.buf)
}

// takeRun makes what i knows of deliveries what e knows.
func (e *entry) takeRun(i *job.Info) {
	r := run{attempt: i.Attempt, base: i.Base}
	switch i.State {
	case job.Running:
		r.nonce, r.text = i.Nonce, i.Owner
	case job.Dead:
		r.text = i.Reason[:min(len(i.Reason), maxReason)]
	}
	if e.run = nil; r != (run{}) || i.State != job.Pending {
		e.run = &r
	}
}

// adoptEnd takes over that a job has ended; slot is where its id is held. A later
// job of the id is not what has ended, and stays.
func (s *Store) adoptEnd(slot uint32, i *job.Info) {
	if slot != 0 && s.entries.at(slot).incarnation() <= i.Incarnation {
		e := s.entries.at(slot)
		if e.incarnation() != i.Incarnation {
			s.logGone(e.id(), e.incarnation(), wal.Migrated)
		}
		s.detach(e)
		s.drop(slot)
	}
	id, n := noteOf(i)
	s.observe(n.at)
	s.remember(id, n, s.options.Verdicts)
	s.logEnd(id, &n, s.options.Verdicts)
}

// TakeDue removes up to limit pending jobs that are due at or before until,
// earliest first, and returns them: fewer where they have many bytes.
func (s *Store) TakeDue(until job.Time, limit int) []job.Info {
	return s.take(func() []uint32 { return s.batch(limit, s.first(until, s.pending()...)) })
}

// TakeExpired removes up to limit running jobs whose lease ended at or before
// now, earliest first, and returns them: fewer where they have many bytes.
func (s *Store) TakeExpired(now job.Time, limit int) []job.Info {
	return s.take(func() []uint32 { return s.batch(limit, s.first(now, &s.running)) })
}

// batch returns as many of slots as are to be decoded at once.
func (s *Store) batch(limit int, slots iter.Seq[uint32]) (list []uint32) {
	bytes := 0
	for slot := range slots {
		if len(list) >= limit || bytes >= maxBatchBytes {
			break
		}
		list = append(list, slot)
		bytes += len(s.entries.at(slot).blob)
	}
	return list
}

// Take removes the jobs that are held under ids and returns them, all of them.
func (s *Store) Take(ids []string) []job.Info {
	return s.take(func() []uint32 {
		var slots []uint32
		for _, id := range ids {
			if slot := s.ids.find(id); slot != 0 {
				slots = append(slots, slot)
			}
		}
		return slots
	})
}

// take removes the jobs in the slots that choose returns and returns them, but
// for those whose record cannot be read. They leave no note. It does not wait
// until that is durable: whoever takes a job makes it durable elsewhere first
// or can do without.
func (s *Store) take(choose func() []uint32) []job.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	slots := choose()
	infos := make([]job.Info, 0, len(slots))
	for _, slot := range slots {
		e := s.entries.at(slot)
		if e.place == free {
			continue // its id was given twice
		}
		if info, err := s.info(e); err == nil {
			infos = append(infos, info)
			s.forget(slot, wal.Migrated)
		}
	}
	s.append()
	return infos
}

// Discard forgets what is held of jobs and the verdicts on them, by id and
// incarnation (zero: any), without a note.
func (s *Store) Discard(ctx context.Context, refs []job.Ref) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	for i := range refs {
		id, incarnation := refs[i].ID, refs[i].Incarnation
		if slot := s.ids.find(id); slot != 0 && (incarnation == 0 || s.entries.at(slot).incarnation() == incarnation) {
			s.forget(slot, wal.Migrated)
		}
		if incarnation != 0 {
			s.dropVerdict(id, incarnation)
			continue
		}
		for v := s.verdicts.latest(id); v != nil; v = s.verdicts.latest(id) {
			s.dropVerdict(id, v.incarnation)
		}
	}
	return s.commit(ctx)
}
