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
	if j.ID == "" {
		j.ID, j.Generated = s.mintID(), true
	}
	if j.Incarnation == 0 {
		j.Incarnation = job.NextIncarnation()
	}
	res := job.PutResult{Due: j.Due, Stored: job.StoredMemory}
	if err := j.Check(); err != nil {
		res.Err = err
		return res
	}
	slot := s.ids.find(j.ID)
	switch {
	case s.known(slot, j, &res):
	case slot != 0:
		res.Err = s.replace(slot, j)
	case s.entries.count >= s.maxJobs:
		res.Err = s.full
	default:
		slot = s.entries.alloc()
		s.set(slot, j)
		s.ids.add(slot)
	}
	return res
}

func (s *Store) mintID() string {
	for {
		id := job.NewID(0)
		if s.ids.find(id) == 0 && s.recall(id) == nil {
			return id
		}
	}
}

// known reports whether j, or an earlier job that stands in its way, is
// stored already or ended too lately; it fills in res accordingly.
func (s *Store) known(slot uint32, j *job.Job, res *job.PutResult) bool {
	if n := s.recall(j.ID); n != nil {
		if n.incarnation == j.Incarnation {
			return true // put again after it ended
		}
		if slot == 0 && !j.Replace && n.state == job.Done && firstToken(n.target) == firstToken(j.Target) {
			res.Duplicate, res.Due = true, n.due
			return true
		}
	}
	if slot == 0 {
		return false
	}
	e := s.entries.at(slot)
	if e.incarnation() == j.Incarnation {
		res.Due = e.due()
		return true
	}
	if j.Replace || firstToken(e.target()) != firstToken(j.Target) {
		return false
	}
	res.Duplicate, res.Due = true, e.due()
	return true
}

// replace puts j in the place of the job in slot, unless that is not allowed.
func (s *Store) replace(slot uint32, j *job.Job) error {
	e := s.entries.at(slot)
	if have := firstToken(e.target()); have != firstToken(j.Target) {
		return job.ErrConflict.With("id %q lives under another first target token than %q; choose another id", j.ID, firstToken(j.Target))
	}
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
