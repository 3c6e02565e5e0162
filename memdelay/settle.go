package memdelay

import (
	"context"
	"fmt"

	"github.com/delaybridge/delaybridge/job"
)

// maxReason is how many bytes of a reason are kept.
const maxReason = 255

// Settle implements [job.Queue].
func (s *Store) Settle(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	s.observe(now)
	res := make([]job.SettleResult, len(list))
	for i := range list {
		if list[i].Outcome > job.Extend {
			return nil, fmt.Errorf("memory store: settlement of %q: outcome %d is not known", list[i].ID, list[i].Outcome)
		}
	}
	for i := range list {
		res[i] = s.settle(now, &list[i])
	}
	return res, nil
}

func (s *Store) settle(now job.Time, t *job.Settlement) job.SettleResult {
	slot := s.ids.find(t.ID)
	if slot == 0 || !s.entries.at(slot).is(&t.Ref) {
		return s.refuse(slot, t)
	}
	switch t.Outcome {
	case job.Complete:
		s.end(slot, false, now)
	case job.Retry:
		s.giveBack(slot, scheduled, t.At, 0)
	case job.Release:
		s.giveBack(slot, scheduled, t.At, 1)
	case job.SetAside:
		if t.Spare {
			s.entries.at(slot).run.base++
			s.giveBack(slot, setAside, t.At, 0)
			break
		}
		s.giveBack(slot, setAside, t.At, 1)
	case job.Bury:
		s.bury(slot, now, t.Reason)
	case job.Extend:
		s.move(slot, running, t.At)
	}
	return job.Settled
}

// refuse says why t, which is not of the present delivery, changes nothing.
func (s *Store) refuse(slot uint32, t *job.Settlement) job.SettleResult {
	n := s.recall(t.ID)
	if n == nil {
		if slot == 0 {
			return job.Unknown
		}
		return job.Stale
	}
	if t.Outcome == job.Complete && !n.cancelled && n.is(&t.Ref) {
		return job.Repeated
	}
	return job.Stale
}

// is reports whether r is the delivery that ended the job.
func (n *note) is(r *job.Ref) bool {
	return n.nonce == r.Nonce && n.attempt == r.Attempt && n.incarnation == r.Incarnation
}

// giveBack makes a running job pending again and takes back so many attempts.
func (s *Store) giveBack(slot uint32, to place, at job.Time, attempts uint32) {
	run := s.entries.at(slot).run
	run.attempt -= attempts
	run.nonce, run.text = 0, ""
	s.move(slot, to, at)
}

// bury makes a running job dead.
func (s *Store) bury(slot uint32, now job.Time, reason string) {
	run := s.entries.at(slot).run
	run.nonce, run.text = 0, reason[:min(len(reason), maxReason)]
	s.move(slot, dead, now)
}

// Prune implements [job.Queue].
func (s *Store) Prune(ctx context.Context, before job.Time, limit int) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	n := 0
	for ; n < limit; n++ {
		slot, ok := s.dead.due(before)
		if !ok {
			break
		}
		s.forget(slot)
	}
	return n, nil
}
