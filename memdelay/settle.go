package memdelay

import (
	"context"
	"fmt"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// maxReason is how many bytes of a reason are kept.
const maxReason = 255

// Settle implements [job.Queue].
func (s *Store) Settle(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	for i := range list {
		if list[i].Outcome > job.Own {
			return nil, fmt.Errorf("memory store: settlement of %q: outcome %d is not known", list[i].ID, list[i].Outcome)
		}
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.observe(now)
	res := make([]job.SettleResult, len(list))
	for i := range list {
		res[i] = s.settle(now, &list[i])
	}
	if err := s.commit(ctx); err != nil {
		return nil, err
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
		s.giveBack(slot, scheduled, t.At, s.spare(slot, t))
	case job.SetAside:
		s.giveBack(slot, setAside, t.At, s.spare(slot, t))
	case job.Bury:
		s.bury(slot, now, t.Reason)
	case job.Extend:
		s.move(slot, running, t.At)
		s.change(slot)
	case job.Own:
		return s.own(slot, t)
	}
	return job.Settled
}

// own renews the lease of the job in slot and gives it to t.Owner, unless another
// worker has it.
func (s *Store) own(slot uint32, t *job.Settlement) job.SettleResult {
	run := s.entries.at(slot).run
	_, has := job.SplitOwner(run.text)
	_, asks := job.SplitOwner(t.Owner)
	if has != "" && has != asks {
		return job.Taken
	}
	run.text = t.Owner
	s.move(slot, running, t.At)
	s.change(slot)
	return job.Settled
}

// spare is how many attempts t takes back of the job in slot; one that keeps its
// number is taken off the budget's count.
func (s *Store) spare(slot uint32, t *job.Settlement) uint32 {
	if !t.Spare {
		return 1
	}
	s.entries.at(slot).run.base++
	return 0
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
	s.change(slot)
}

// bury makes a running job dead.
func (s *Store) bury(slot uint32, now job.Time, reason string) {
	run := s.entries.at(slot).run
	run.nonce, run.text = 0, reason[:min(len(reason), maxReason)]
	s.move(slot, dead, now)
	s.change(slot)
}

// Prune implements [job.Queue].
func (s *Store) Prune(ctx context.Context, before job.Time, limit int) (int, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	n := 0
	for ; n < limit; n++ {
		slot, ok := s.dead.due(before)
		if !ok {
			break
		}
		s.forget(slot, wal.Evicted)
	}
	return n, s.commit(ctx)
}
