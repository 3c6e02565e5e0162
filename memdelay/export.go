package memdelay

import (
	"context"
	"iter"
	"math"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Found is what a store holds of an id: a job, else the latest verdict that is
// owed.
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
			found[i] = Found{e.state(), e.incarnation(), e.attempt(), e.shared()}
		} else if v := s.verdicts.latest(id); v != nil {
			found[i] = Found{v.state(), v.incarnation, v.attempt, true}
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

// maxBatchBytes is about how many bytes of jobs Export and Take decode at once:
// it is done with the store locked, and the caller holds them all.
const maxBatchBytes = 16 << 20

// Export returns up to limit of what another store is to take over, fewer where
// they have many bytes, in this order: the verdicts that are owed, in state done
// or cancelled, earliest first; the urgent jobs, whose id the other store may act
// on though it should not, or not so: those that were adopted, that were put with
// Replace, and the suspect ones that have changed since; and, unless statesOnly,
// the others by Next, earliest first.
//
// Ids that skip, unless nil, reports true for are left out; it must not call the
// store. Replace is set of jobs that were put so. Export changes nothing: what the
// other store has taken is to be given to Forget.
func (s *Store) Export(limit int, statesOnly bool, skip func(id string) bool) []Exported {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := exporting{Store: s, limit: limit, skip: skip}
	for v := range s.verdicts.inOrder() {
		if x.full() {
			return x.list
		}
		x.addVerdict(v.id, &v.note)
	}
	for slot := range s.urgent {
		if x.full() {
			return x.list
		}
		x.addJob(slot)
	}
	if statesOnly {
		return x.list
	}
	for slot := range s.first(math.MaxInt64, append(s.pending(), &s.running, &s.dead)...) {
		if x.full() {
			break
		}
		if _, done := s.urgent[slot]; !done {
			x.addJob(slot)
		}
	}
	return x.list
}

// All yields all that Export would return without a limit, in batches that it
// might have: the verdicts first, then the jobs in no order. What comes or changes
// meanwhile may be left out; others are let in between two batches.
func (s *Store) All(batch int) iter.Seq[[]Exported] {
	return func(yield func([]Exported) bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		x := exporting{Store: s, limit: batch}
		flush := func() bool {
			list := x.list
			x.list, x.bytes = nil, 0
			s.mu.Unlock()
			defer s.mu.Lock()
			return yield(list)
		}
		for id, n := range s.verdicts.all() {
			if x.addVerdict(id, &n); x.full() && !flush() {
				return
			}
		}
		for slot := uint32(0); slot < uint32(s.entries.slots()); slot++ {
			if s.entries.at(slot).place == free {
				continue
			}
			if x.addJob(slot); x.full() && !flush() {
				return
			}
		}
		if len(x.list) > 0 {
			flush()
		}
	}
}

// exporting is one batch of what is exported.
type exporting struct {
	*Store
	limit, bytes int
	skip         func(id string) bool // may be nil
	list         []Exported
}

// full reports whether the batch should get no more.
func (x *exporting) full() bool { return len(x.list) >= x.limit || x.bytes >= maxBatchBytes }

func (x *exporting) addVerdict(id string, n *note) {
	if x.skip != nil && x.skip(id) {
		return
	}
	info := n.info(id)
	info.Stored, info.Nonce = x.stored, n.nonce
	x.list = append(x.list, Exported{Info: info})
}

func (x *exporting) addJob(slot uint32) {
	e := x.entries.at(slot)
	if x.skip != nil && x.skip(e.id()) {
		return
	}
	if info, err := x.info(e); err == nil {
		info.Replace = e.marks&markReplace != 0
		x.list = append(x.list, Exported{info, !x.owes(e)})
		x.bytes += len(e.blob)
	}
}

// Owe is to be called before what was exported is given to the other store: from
// then on that may know the jobs, so how they end is kept for it, and what changes
// is urgent. It returns those of list that have not changed meanwhile; only they
// may be given. Durable on return.
func (s *Store) Owe(ctx context.Context, list []Exported) ([]Exported, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	same := make([]Exported, 0, len(list))
	for i := range list {
		slot := s.present(list[i].ID, list[i].Incarnation)
		if list[i].ended() {
			if s.verdicts.get(list[i].ID, list[i].Incarnation) != nil {
				same = append(same, list[i])
			}
			continue
		}
		if slot == 0 || !s.entries.at(slot).same(&list[i].Info) {
			continue
		}
		same = append(same, list[i])
		if !s.entries.at(slot).shared() {
			s.mark(slot, markSuspect)
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
	owed := s.verdicts.get(x.ID, x.Incarnation)
	if x.ended() {
		if owed == nil {
			return s.present(x.ID, x.Incarnation) == 0 // revived: changed
		}
		if owed.state() != x.State || owed.attempt != x.Attempt || owed.nonce != x.Nonce || owed.at != x.Next {
			return false
		}
		s.dropVerdict(x.ID, x.Incarnation)
		return true
	}
	slot := s.present(x.ID, x.Incarnation)
	if slot == 0 {
		return owed == nil // it has ended: changed
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
	Jobs         int   // that are held, adopted and dead ones included
	Adopted      int   // of those, taken over from another store
	Verdicts     int   // owed to another store
	Bytes        int64 // of the ids and records of all jobs
	OwnBytes     int64 // of those, of the jobs that are not adopted
	VerdictBytes int64 // about what the verdicts take
	MaxJobs      int   // limit of the jobs that are not adopted
	MaxBytes     int64 // limit of OwnBytes and VerdictBytes together
	LogBytes     int64 // on disk, snapshots included
	LogErr       error // why the log takes nothing now; nil: it does
}

// Usage returns how much the store holds.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	u := Usage{
		Jobs: s.entries.count, Adopted: s.adoptions, Verdicts: s.verdicts.len(),
		Bytes: s.allBytes, OwnBytes: s.ownBytes, VerdictBytes: s.verdicts.bytes,
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
