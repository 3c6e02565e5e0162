package memdelay

import (
	"context"
	"strings"

	"github.com/delaybridge/delaybridge/job"
)

// Put implements [job.Queue].
func (s *Store) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	res := make([]job.PutResult, len(jobs))
	for i := range jobs {
		res[i] = s.put(&jobs[i])
	}
	return res, nil
}

func (s *Store) put(j *job.Job) job.PutResult {
	minted := j.ID == ""
	if minted {
		j.ID, j.Generated = s.mintID(), true
	}
	if j.Incarnation == 0 {
		j.Incarnation = job.NextIncarnation()
	}
	res := job.PutResult{Due: j.Due, Stored: job.StoredMemory}
	if err := j.Check(); err != nil {
		res.Err = err
	} else if minted || !s.meets(j, &res) {
		res.Err = s.create(j)
	}
	return res
}

// create stores j, whose id is free.
func (s *Store) create(j *job.Job) error {
	if s.entries.count >= s.maxJobs {
		return s.full
	}
	slot := s.entries.alloc()
	s.set(slot, j)
	s.ids.add(slot)
	return nil
}

func (s *Store) mintID() string {
	for {
		id := job.NewID(0)
		if s.ids.find(id) == 0 && s.recall(id) == nil {
			return id
		}
	}
}

// meets reports whether the id of j is not free; it fills in res with what
// came of that.
func (s *Store) meets(j *job.Job, res *job.PutResult) bool {
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
	return false
}

// meetsLive puts j where the job in slot has its id.
func (s *Store) meetsLive(slot uint32, j *job.Job, res *job.PutResult) {
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
func (s *Store) replace(slot uint32, j *job.Job) error {
	e := s.entries.at(slot)
	if e.place == running {
		return job.ErrConflict.With("job %q is running and cannot be replaced; wait until it ends", j.ID)
	}
	s.detach(e)
	s.set(slot, j)
	return nil
}

// set makes the entry in slot, which is in no heap, the scheduled job j.
func (s *Store) set(slot uint32, j *job.Job) {
	e := s.entries.at(slot)
	s.buf = appendBlob(s.buf[:0], j)
	e.blob, e.next, e.run, e.place = string(s.buf), j.Due, nil, scheduled
	s.scheduled.push(slot)
}

func firstToken(target string) string {
	first, _, _ := strings.Cut(target, ".")
	return first
}
