package memdelay

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Put implements [job.Queue]. Where the disk is full, every job of the batch
// gets an error that is ErrFull, and none stays.
func (s *Store) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	return s.putAll(ctx, jobs, 0)
}

// PutSuspect is Put of jobs that another store may have taken too: how they
// end is kept as a verdict.
func (s *Store) PutSuspect(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	return s.putAll(ctx, jobs, markSuspect)
}

func (s *Store) putAll(ctx context.Context, jobs []job.Job, m marks) ([]job.PutResult, error) {
	if full := s.diskFull(); full != nil {
		return refuseAll(make([]job.PutResult, len(jobs)), full), nil
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	p := putting{Store: s, marks: m}
	res := make([]job.PutResult, len(jobs))
	for i := range jobs {
		res[i] = p.put(&jobs[i])
	}
	err := s.commit(ctx)
	if errors.Is(err, job.ErrFull) {
		s.undo(p.done)
		return refuseAll(res, err), nil
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// refuseAll gives err to every result that has no error yet.
func refuseAll(res []job.PutResult, err error) []job.PutResult {
	for i := range res {
		if res[i].Err == nil {
			res[i] = job.PutResult{Err: err}
		}
	}
	return res
}

// putting is one call of Put.
type putting struct {
	*Store
	marks marks
	done  []undoable // of a durable store
}

// undoable is what a put changed.
type undoable struct {
	id          string
	incarnation uint64
	old         entry // what was replaced; free: nothing
}

func (s *putting) put(j *job.Job) job.PutResult {
	minted := j.ID == ""
	if minted {
		j.ID, j.Generated = s.mintID(), true
	}
	if j.Incarnation == 0 {
		j.Incarnation = job.NextIncarnation()
	}
	res := job.PutResult{Due: j.Due, Stored: s.stored}
	if err := j.Check(); err != nil {
		res.Err = err
	} else if minted || !s.meets(j, &res) {
		res.Err = s.create(j)
	}
	return res
}

// create stores j, whose id is free.
func (s *putting) create(j *job.Job) error {
	s.buf = appendBlob(s.buf[:0], j)
	if s.entries.count-s.adoptions >= s.options.MaxJobs {
		return job.ErrFull.With("memory store holds its limit of %d jobs; wait for jobs to end or raise the limit", s.options.MaxJobs)
	}
	if err := s.room(int64(len(s.buf))); err != nil {
		return err
	}
	slot := s.entries.alloc()
	s.set(slot, j)
	s.ids.add(slot)
	s.store(slot, entry{})
	return nil
}

// room reports, as ErrFull, that so many more bytes are beyond the limit.
func (s *Store) room(more int64) error {
	if more > 0 && s.ownBytes+s.verdicts.bytes+more > s.options.MaxBytes {
		return job.ErrFull.With("memory store holds jobs of %d bytes, and verdicts of %d, the limit is %d; wait for jobs to end, or to move, or raise the limit",
			s.ownBytes, s.verdicts.bytes, s.options.MaxBytes)
	}
	return nil
}

// store logs the entry that was put in slot, and notes how to undo it.
func (s *putting) store(slot uint32, old entry) {
	s.logJob(slot)
	if s.disk != nil {
		e := s.entries.at(slot)
		s.done = append(s.done, undoable{e.id(), e.incarnation(), old})
	}
}

// undo takes back what was put, latest first.
func (s *Store) undo(list []undoable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(list) - 1; i >= 0; i-- {
		u := &list[i]
		slot := s.ids.find(u.id)
		if slot == 0 || s.entries.at(slot).incarnation() != u.incarnation {
			continue
		}
		if u.old.place == free {
			s.forget(slot, wal.Evicted)
			continue
		}
		s.detach(s.entries.at(slot))
		s.count(slot, -1)
		e := s.entries.at(slot)
		e.blob, e.run, e.marks, e.place = u.old.blob, u.old.run, u.old.marks, free
		s.count(slot, +1)
		s.move(slot, u.old.place, u.old.next)
		s.logJob(slot)
	}
	s.append()
}

// mintID mints an id of any shard: the job may move to a store that has some.
func (s *Store) mintID() string {
	for {
		id := job.NewID(uint16(rand.N(job.MaxShards)))
		if s.ids.find(id) == 0 && s.recall(id) == nil {
			return id
		}
	}
}

// meets reports whether the id of j is not free; it fills in res with what
// came of that.
func (s *putting) meets(j *job.Job, res *job.PutResult) bool {
	slot, n := s.ids.find(j.ID), s.recall(j.ID)
	switch {
	case n != nil && n.incarnation == j.Incarnation:
		return true // put again after it ended
	case slot != 0:
		s.meetsLive(slot, j, res)
		return true
	case n != nil && !n.cancelled && !j.Replace && firstToken(n.target) == firstToken(j.Target):
		res.Duplicate, res.Due = true, n.due
		return true
	}
	return s.verdicts.get(j.ID, j.Incarnation) != nil
}

// meetsLive puts j where the job in slot has its id.
func (s *putting) meetsLive(slot uint32, j *job.Job, res *job.PutResult) {
	e := s.entries.at(slot)
	switch {
	case e.incarnation() == j.Incarnation:
		res.Due = e.due()
	case firstToken(e.target()) != firstToken(j.Target):
		res.Err = job.ErrConflict.With("id %q lives under another first target token than %q; choose another id", j.ID, firstToken(j.Target))
	case j.Replace:
		res.Err = s.replace(slot, j)
	default:
		res.Duplicate, res.Due = true, e.due()
	}
}

// replace puts j in the place of the job in slot, unless that is running.
func (s *putting) replace(slot uint32, j *job.Job) error {
	e := s.entries.at(slot)
	if e.place == running {
		return job.ErrConflict.With("job %q is running and cannot be replaced; wait until it ends", j.ID)
	}
	s.buf = appendBlob(s.buf[:0], j)
	if err := s.room(int64(len(s.buf) - len(e.blob))); err != nil && !e.adopted() {
		return err
	}
	old := *e
	s.detach(e)
	s.count(slot, -1)
	s.set(slot, j)
	s.store(slot, old)
	return nil
}

// set makes the entry in slot, which is in no heap and not counted, the
// scheduled job j, whose blob is in s.buf. It stays adopted or suspect: the other
// store knows the id, or may.
func (s *putting) set(slot uint32, j *job.Job) {
	e := s.entries.at(slot)
	e.blob, e.next, e.run, e.place = string(s.buf), j.Due, nil, scheduled
	e.marks = e.marks&(markAdopted|markSuspect) | s.marks
	if j.Replace {
		e.marks |= markReplace
	}
	s.count(slot, +1)
	s.scheduled.push(slot)
}

func firstToken(target string) string {
	first, _, _ := strings.Cut(target, ".")
	return first
}
