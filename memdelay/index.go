package memdelay

import (
	"context"

	"github.com/delaybridge/delaybridge/job"
)

// Get implements [job.Index].
func (s *Store) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	infos := make([]job.Info, len(ids))
	for i, id := range ids {
		var err error
		if slot := s.ids.find(id); slot != 0 {
			infos[i], err = s.info(s.entries.at(slot))
		} else if n := s.recall(id); n != nil {
			infos[i] = n.info(id)
			infos[i].Stored = s.stored
		} else {
			infos[i].ID = id
		}
		if err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// info returns what is known of e.
func (s *Store) info(e *entry) (job.Info, error) {
	j, err := job.DecodeRecord(e.id(), e.record())
	i := job.Info{Job: j, State: e.state(), Next: e.next, Stored: s.stored}
	if e.run == nil {
		return i, err
	}
	i.Attempt, i.Base, i.Nonce = e.run.attempt, e.run.base, e.run.nonce
	switch e.place {
	case running:
		i.Owner = e.run.text
	case dead:
		i.Reason = e.run.text
	}
	return i, err
}

func (e *entry) state() job.State {
	switch e.place {
	case running:
		return job.Running
	case dead:
		return job.Dead
	}
	return job.Pending
}

// info returns what is remembered of id.
func (n *note) info(id string) job.Info {
	return job.Info{
		Job:   job.Job{ID: id, Generated: n.generated, Incarnation: n.incarnation, Target: n.target, Due: n.due},
		State: n.state(), Attempt: n.attempt, Next: n.at,
	}
}

// Cancel implements [job.Index].
func (s *Store) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) ([]job.Change, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.observe(now)
	changes := make([]job.Change, len(list))
	for i, l := range list {
		slot, c := s.lookup(l.ID, l.Incarnation)
		if slot != 0 && c.Result != job.ResultRunning {
			c.Result = s.cancel(slot, l.State, now)
		}
		changes[i] = c
	}
	if err := s.commit(ctx); err != nil {
		return nil, err
	}
	return changes, nil
}

// Reschedule implements [job.Index].
func (s *Store) Reschedule(ctx context.Context, list []job.Reschedule) ([]job.Change, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	changes := make([]job.Change, len(list))
	for i, r := range list {
		slot, c := s.lookup(r.ID, r.Incarnation)
		if slot != 0 && c.Result != job.ResultRunning {
			c.Result = s.reschedule(slot, r)
		}
		changes[i] = c
	}
	if err := s.commit(ctx); err != nil {
		return nil, err
	}
	return changes, nil
}

// lookup returns the slot of that incarnation of id (zero: of any), zero when it
// is not held, and what to answer if nothing can be changed.
func (s *Store) lookup(id string, incarnation uint64) (uint32, job.Change) {
	is := func(held uint64) bool { return incarnation == 0 || incarnation == held }
	slot := s.ids.find(id)
	if slot == 0 {
		if n := s.recall(id); n != nil && is(n.incarnation) {
			return 0, job.Change{ID: id, Result: job.ResultFinished, Attempt: n.attempt}
		}
		return 0, job.Change{ID: id, Result: job.ResultUnknown}
	}
	e := s.entries.at(slot)
	if !is(e.incarnation()) {
		return 0, job.Change{ID: id, Result: job.ResultUnknown}
	}
	c := job.Change{ID: id, Attempt: e.attempt()}
	if e.place == running {
		c.Result, c.Owner = job.ResultRunning, e.run.text
	}
	return slot, c
}

// cancel acts on the entry in slot, which is pending or dead: in that state alone
// if one is given.
func (s *Store) cancel(slot uint32, state job.State, now job.Time) job.Result {
	if state != "" && state != s.entries.at(slot).state() {
		return job.ResultFinished
	}
	s.end(slot, true, now)
	return job.ResultDone
}

// reschedule acts on the entry in slot, which is pending or dead.
func (s *Store) reschedule(slot uint32, r job.Reschedule) job.Result {
	e := s.entries.at(slot)
	switch {
	case e.place == dead && !r.Requeue:
		return job.ResultFinished
	case e.place != dead && r.Requeue:
		return job.ResultUnknown // there is no such dead job
	case e.place == dead:
		e.run.base, e.run.text = e.run.attempt, ""
	}
	s.detach(e) // by the old blob, which names its target
	e.blob, e.place = s.withDue(e, r.Due), free
	s.move(slot, scheduled, r.Due)
	s.change(slot)
	return job.ResultDone
}
