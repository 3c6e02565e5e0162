package memdelay

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Found is what a store holds of an id: a job, else the verdict that is owed.
type Found struct {
	State       job.State // empty: neither
	Incarnation uint64
	Attempt     uint32
	Shared      bool // the other store knows the job, or may
}

// Find returns what is held of each id, in order.
func (s *Store) Find(ids []string) []Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make([]Found, len(ids))
	for i, id := range ids {
		if slot := s.ids.find(id); slot != 0 {
			e := s.entries.at(slot)
			found[i] = Found{e.state(), e.incarnation(), e.attempt(), e.marks&(markAdopted|markSuspect) != 0}
		} else if n, ok := s.verdicts[id]; ok {
			found[i] = Found{n.state(), n.incarnation, n.attempt, true}
		}
	}
	return found
}

// Exported is a job, or the verdict on one, as it was when it was exported.
type Exported struct {
	job.Info
	Fresh bool // the other store cannot know it
}

// ended reports whether x is a verdict.
func (x *Exported) ended() bool { return x.State == job.Done || x.State == job.Cancelled }

// Export returns up to limit of what another store is to take over, in this
// order: the verdicts that are owed, in state done or cancelled; the adopted
// jobs, which the other store knows and may act on; and, unless statesOnly, the
// others by Next, earliest first. Replace is set of jobs that were put so. It
// changes nothing: what the other store has taken is to be given to Forget.
func (s *Store) Export(limit int, statesOnly bool) []Exported {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Exported
	for id, n := range s.verdicts {
		if len(list) == limit {
			return list
		}
		info := n.info(id)
		info.Stored, info.Nonce = s.stored, n.nonce
		list = append(list, Exported{Info: info})
	}
	add := func(slot uint32) {
		e := s.entries.at(slot)
		if info, err := s.info(e); err == nil {
			info.Replace = e.marks&markReplace != 0
			list = append(list, Exported{info, !s.owes(e)})
		}
	}
	for slot := range s.adopted {
		if len(list) == limit {
			return list
		}
		add(slot)
	}
	if statesOnly {
		return list
	}
	// Among the first so many there are enough of the others.
	for _, slot := range s.first(limit-len(list)+len(s.adopted), append(s.pending(), &s.running, &s.dead)...).slots {
		if len(list) == limit {
			break
		}
		if _, done := s.adopted[slot]; !done {
			add(slot)
		}
	}
	return list
}

// Owe is to be called before what was exported is given to the other store: from
// then on that may know the jobs, so how they end is kept for it. It returns
// those of list that have not changed meanwhile; only they may be given.
// Durable on return.
func (s *Store) Owe(ctx context.Context, list []Exported) ([]Exported, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	same := make([]Exported, 0, len(list))
	for i := range list {
		slot := s.present(list[i].ID, list[i].Incarnation)
		if list[i].ended() {
			if n, ok := s.verdicts[list[i].ID]; ok && n.incarnation == list[i].Incarnation {
				same = append(same, list[i])
			}
			continue
		}
		if slot == 0 || !s.entries.at(slot).same(&list[i].Info) {
			continue
		}
		same = append(same, list[i])
		if e := s.entries.at(slot); !s.owes(e) {
			e.marks |= markSuspect
			s.logChange(slot)
		}
	}
	return same, s.commit(ctx)
}

// Forget removes what was exported, without a note, unless it has changed since;
// it returns how many have. Jobs that are gone by another way are not counted.
func (s *Store) Forget(ctx context.Context, list []Exported) (changed int, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	for i := range list {
		if !s.forgetSame(&list[i]) {
			changed++
		}
	}
	return changed, s.commit(ctx)
}

// forgetSame removes what x says, or reports false when it is otherwise now.
func (s *Store) forgetSame(x *Exported) bool {
	n, owed := s.verdicts[x.ID]
	owed = owed && n.incarnation == x.Incarnation
	if x.ended() {
		if !owed {
			return s.present(x.ID, x.Incarnation) == 0 // revived: changed
		}
		if n.state() != x.State || n.attempt != x.Attempt || n.nonce != x.Nonce || n.at != x.Next {
			return false
		}
		s.settled(x.ID, &n)
		return true
	}
	slot := s.present(x.ID, x.Incarnation)
	if slot == 0 {
		return !owed // it has ended: changed
	}
	if !s.entries.at(slot).same(&x.Info) {
		return false
	}
	s.forget(slot, wal.Migrated)
	return true
}

// same reports whether e, of the same incarnation, is in the state of i. Where
// it has been in another one meanwhile, that does not matter.
func (e *entry) same(i *job.Info) bool {
	var r run
	if e.run != nil {
		r = *e.run
	}
	text := i.Owner
	if i.State == job.Dead {
		text = i.Reason
	}
	return e.state() == i.State && e.next == i.Next && e.due() == i.Due &&
		r == run{i.Attempt, i.Base, i.Nonce, text}
}

// Usage is how much a store holds.
type Usage struct {
	Jobs     int   // that are held, adopted and dead ones included
	Adopted  int   // of those, taken over from another store
	Verdicts int   // owed to another store
	Bytes    int64 // of the ids and records of all jobs
	MaxJobs  int   // limit of the jobs that are not adopted
	MaxBytes int64 // limit of their bytes
	LogBytes int64 // on disk, snapshots included
	LogErr   error // why the log takes nothing now; nil: it does
}

// Usage returns how much the store holds.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	u := Usage{
		Jobs: s.entries.count, Adopted: s.adoptions, Verdicts: len(s.verdicts), Bytes: s.allBytes,
		MaxJobs: s.options.MaxJobs, MaxBytes: s.options.MaxBytes,
	}
	s.mu.Unlock()
	if s.disk != nil {
		u.LogBytes, u.LogErr = s.disk.size(), s.disk.failure(s.disk.log.Err())
	}
	return u
}

// SetLimits sets MaxJobs and MaxBytes; zero leaves one as it is. What is held
// beyond them stays.
func (s *Store) SetLimits(maxJobs int, maxBytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maxJobs != 0 {
		s.options.MaxJobs = maxJobs
	}
	if maxBytes != 0 {
		s.options.MaxBytes = maxBytes
	}
}

// pending returns the heaps of pending jobs.
func (s *Store) pending() []*heap {
	heaps := make([]*heap, 0, len(s.waiting)+3)
	heaps = append(heaps, &s.scheduled)
	for _, q := range s.waiting {
		heaps = append(heaps, q)
	}
	return heaps
}

// ordered is slots of entries in the order of their next times.
type ordered struct {
	entries *slab
	slots   []uint32
}

// until returns the slots whose time is at or before t.
func (o ordered) until(t job.Time) []uint32 {
	n, _ := slices.BinarySearchFunc(o.slots, t, func(slot uint32, t job.Time) int {
		if o.entries.at(slot).next <= t {
			return -1
		}
		return 1
	})
	return o.slots[:n]
}
