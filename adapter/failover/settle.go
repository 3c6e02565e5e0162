package failover

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// Settle implements [job.Queue]. What the primary does not confirm within the
// hand-over time is settled in the local store, if this bridge knows the
// delivery; the others are Unreachable.
func (s *Store) Settle(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	if len(list) == 0 {
		return nil, nil
	}
	if !s.remote() {
		return s.settleLocal(ctx, now, list)
	}
	here, there := s.splitRefs(list)
	if len(here) == 0 {
		return s.settlePrimary(ctx, now, list)
	}
	res := make([]job.SettleResult, len(list))
	err := settleSome(list, here, res, func(some []job.Settlement) ([]job.SettleResult, error) { return s.settleLocal(ctx, now, some) })
	if err == nil && len(there) > 0 {
		err = settleSome(list, there, res, func(some []job.Settlement) ([]job.SettleResult, error) { return s.settlePrimary(ctx, now, some) })
	}
	if err != nil {
		return nil, err
	}
	signal(s.kick)
	return res, nil
}

// splitRefs returns the indices of the deliveries that the local store knows,
// or knows to be over, and of the others; nothing when it holds none.
func (s *Store) splitRefs(list []job.Settlement) (here, there []int) {
	if u := s.disk().Usage(); u.Jobs+u.Verdicts == 0 {
		return nil, nil
	}
	for i, f := range s.disk().Find(idsOf(list)) {
		if f.State != "" && f.Incarnation == list[i].Incarnation && f.Attempt >= list[i].Attempt {
			here = append(here, i)
		} else {
			there = append(there, i)
		}
	}
	return here, there
}

func idsOf(list []job.Settlement) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return ids
}

func settleSome(list []job.Settlement, at []int, res []job.SettleResult, settle func([]job.Settlement) ([]job.SettleResult, error)) error {
	some := make([]job.Settlement, len(at))
	for k, i := range at {
		some[k] = list[i]
	}
	r, err := settle(some)
	if err != nil {
		return err
	}
	for k, i := range at {
		res[i] = r[k]
	}
	return nil
}

func (s *Store) settlePrimary(ctx context.Context, now job.Time, list []job.Settlement) (res []job.SettleResult, err error) {
	losses := s.lossCount.Load()
	err = s.call(ctx, s.handOver(), func(ctx context.Context, p Primary) (err error) {
		res, err = p.Settle(ctx, now, list)
		return err
	})
	if err != nil {
		if s.localUsable() != nil {
			return nil, err
		}
		res, err = s.settleLocal(ctx, now, list)
		signal(s.kick)
		return res, err
	}
	s.settledThere(now, list, res)
	s.ownedThere(ctx, now, list, res)
	s.endHere(ctx, now, completed(list, res))
	s.journalEnds(ctx, now, list, res)
	if losses != s.lossCount.Load() {
		// The primary may have lost it, and been given it again by the journal, in
		// between: it must be told once more.
		s.endAgain(ctx, now, list, res)
	}
	return res, nil
}

// completed returns which of the settlements have completed a job.
func completed(list []job.Settlement, res []job.SettleResult) (refs []job.Ref) {
	for i := range list {
		if list[i].Outcome == job.Complete && (res[i] == job.Settled || res[i] == job.Repeated) {
			refs = append(refs, list[i].Ref)
		}
	}
	return refs
}

// endHere completes jobs that the primary has completed where the local store has
// a copy: it took them over from the mirror while the answer was on its way, or
// from a put that was not answered.
func (s *Store) endHere(ctx context.Context, now job.Time, refs []job.Ref) {
	if len(refs) == 0 || s.disk().Usage().Jobs == 0 || len(s.copies(refs)) == 0 {
		return
	}
	// Nothing else may happen to them here between the look and the end.
	s.gate.Lock()
	defer s.gate.Unlock()
	copies := s.copies(refs)
	ids := make([]string, len(copies))
	for i := range copies {
		ids[i] = copies[i].ID
	}
	ctx = context.WithoutCancel(ctx)
	infos, err := s.disk().Get(ctx, ids)
	for i := range infos {
		infos[i].State, infos[i].Next = job.Done, now
		infos[i].Attempt, infos[i].Nonce = max(infos[i].Attempt, copies[i].Attempt), copies[i].Nonce
	}
	if err == nil && len(infos) > 0 {
		err = unlessFull(s.disk().Adopt(ctx, infos))
		signal(s.kick)
	}
	if err != nil {
		s.log.Error("jobs that Redis has completed stay on this bridge's disk: they run again if it starts anew without Redis", "jobs", len(ids), "error", err)
	}
}

// copies returns those of refs whose jobs the local store has, and not as ended.
func (s *Store) copies(refs []job.Ref) (copies []job.Ref) {
	ids := make([]string, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	for i, f := range s.disk().Find(ids) {
		if f.State != "" && f.State != job.Done && f.State != job.Cancelled && f.Incarnation == refs[i].Incarnation {
			copies = append(copies, refs[i])
		}
	}
	return copies
}

// settledThere does to the mirror what the primary did.
func (s *Store) settledThere(now job.Time, list []job.Settlement, res []job.SettleResult) {
	var ended, freed []job.Ref
	var changed []job.Settlement
	until := now.Add(s.limits.Load().Horizon)
	for i := range list {
		if res[i] != job.Settled && res[i] != job.Repeated {
			continue
		}
		switch t := &list[i]; t.Outcome {
		case job.Retry, job.Release, job.SetAside:
			if t.At > until {
				ended = append(ended, t.Ref)
				break
			}
			changed, freed = append(changed, *t), append(freed, t.Ref)
			if t.Outcome == job.SetAside { // what the mirror holds is set aside when it is claimed
				changed[len(changed)-1].Outcome = job.Release
			}
		case job.Extend:
			changed = append(changed, *t)
		case job.Own: // see ownedThere
		default:
			ended = append(ended, t.Ref)
		}
	}
	s.unmirror(ended)
	if len(changed) > 0 {
		if len(freed) > 0 {
			s.watch.freed(freed...) // before the mirror: what is added from now on is changed there, too
		}
		_, _ = s.mirror.Settle(context.Background(), now, changed) // a job that is not there stays away
	}
}

// settleTries is how often a delivery is looked for that moves between the
// stores at the same time.
const settleTries = 3

// settleLocal settles in the local store what it or the mirror knows.
func (s *Store) settleLocal(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	ctx = context.WithoutCancel(ctx)
	s.gate.RLock()
	defer s.gate.RUnlock()
	res := make([]job.SettleResult, len(list))
	left := make([]int, len(list))
	for i := range left {
		left[i] = i
	}
	for try := 0; len(left) > 0 && try < settleTries; try++ {
		err := settleSome(list, left, res, func(some []job.Settlement) ([]job.SettleResult, error) { return s.settleKnown(ctx, now, some) })
		if err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, func(i int) bool { return res[i] != job.Unreachable })
	}
	s.journalEnds(ctx, now, list, res)
	return res, nil
}

// settleKnown is one try of settleLocal; what is in neither store is
// Unreachable. The gate is held for reading.
func (s *Store) settleKnown(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	ids := idsOf(list)
	if err := s.bring(ctx, ids); err != nil {
		return nil, err
	}
	known := s.disk().Find(ids)
	res, err := s.disk().Settle(ctx, now, spareNumbers(list, known))
	if err != nil {
		return nil, err
	}
	for i := range res {
		if res[i] == job.Unknown || res[i] == job.Stale && !judges(&known[i], &list[i].Ref) {
			res[i] = job.Unreachable
		}
	}
	return res, nil
}

// judges reports whether what is known here of a job tells that the delivery is not
// its present one. Of a later delivery than the copy of a live job knows, only Redis
// can tell: another bridge may have made it.
func judges(known *memdelay.Found, r *job.Ref) bool {
	later := known.Shared && known.Attempt < r.Attempt && known.State != job.Done && known.State != job.Cancelled
	return known.Incarnation == r.Incarnation && !later
}

// spareNumbers keeps the numbers of attempts that go back and that Redis has
// given a lease: it would take the job, at a lower number, for an older state.
func spareNumbers(list []job.Settlement, known []memdelay.Found) []job.Settlement {
	cloned := false
	for i := range list {
		if o := list[i].Outcome; known[i].Shared && (o == job.Release || o == job.SetAside) && !list[i].Spare {
			if !cloned {
				list, cloned = slices.Clone(list), true
			}
			list[i].Spare = true
		}
	}
	return list
}
