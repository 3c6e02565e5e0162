package failover

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// endings knows the calls that will add to the journal once they return, and tells
// them which jobs have ended meanwhile: a copy must not outlive its job.
type endings struct {
	mu   sync.Mutex
	open []*ending
}

// ending is what has been told since a call began.
type ending struct {
	losses int64      // how often the primary had lost data when it began
	ended  []job.Info // exactly these have ended, in that state
	look   []string   // which job of these ids has been cancelled is not known
}

func (e *endings) begin(losses int64) *ending {
	c := &ending{losses: losses}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = append(e.open, c)
	return c
}

// end stops watching and returns what was told. c may be nil.
func (e *endings) end(c *ending) (ended []job.Info, look []string) {
	if c == nil {
		return nil, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = slices.DeleteFunc(e.open, func(o *ending) bool { return o == c })
	return c.ended, c.look
}

// apply puts those of infos that have ended so far into that state.
func (e *endings) apply(c *ending, infos []job.Info) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, over := range c.ended {
		for i := range infos {
			if infos[i].ID == over.ID && infos[i].Incarnation == over.Incarnation {
				end(&infos[i], &over)
			}
		}
	}
}

func (e *endings) told(ended []job.Info, look []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.open {
		c.ended, c.look = append(c.ended, ended...), append(c.look, look...)
	}
}

func (e *endings) nobody() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.open) == 0
}

// end puts the copy i into the state of over.
func end(i, over *job.Info) {
	i.State, i.Next, i.Reason, i.Nonce = over.State, over.Next, over.Reason, over.Nonce
	i.Attempt = max(i.Attempt, over.Attempt)
}

// journalEnds ends the copies of jobs that settlements have ended. The primary has
// them as ended: where the journal fails, they come back only if it loses that.
func (s *Store) journalEnds(ctx context.Context, now job.Time, list []job.Settlement, res []job.SettleResult) {
	if s.journal == nil || s.journalEmpty() && s.ends.nobody() {
		return
	}
	var ended []job.Info
	for i := range list {
		t := &list[i]
		if res[i] != job.Settled && res[i] != job.Repeated || t.Outcome != job.Complete && t.Outcome != job.Bury {
			continue
		}
		over := job.Info{Job: job.Job{ID: t.ID, Incarnation: t.Incarnation}, State: job.Done, Attempt: t.Attempt, Nonce: t.Nonce, Next: now}
		if t.Outcome == job.Bury {
			over.State, over.Reason, over.Nonce = job.Dead, t.Reason, 0
		}
		ended = append(ended, over)
	}
	if len(ended) == 0 {
		return
	}
	s.ends.told(ended, nil)
	if err := s.applyEnds(ctx, ended); err != nil {
		s.log.Error("how jobs ended is not in the journal: they may come back if Redis loses data", "jobs", len(ended), "error", err)
	}
}

// applyEnds ends the copies of exactly these jobs.
func (s *Store) applyEnds(ctx context.Context, ended []job.Info) error {
	if len(ended) == 0 || s.journalEmpty() {
		return nil
	}
	ids := make([]string, len(ended))
	for i := range ended {
		ids[i] = ended[i].ID
	}
	ctx = context.WithoutCancel(ctx)
	held, err := s.journal.Get(ctx, ids)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var infos []job.Info
	for i := range held {
		h, over := &held[i], &ended[i]
		if h.Incarnation != over.Incarnation || h.State != job.Pending && (h.State != job.Dead || over.State == job.Dead) {
			continue
		}
		end(h, over)
		infos = append(infos, *h)
	}
	if len(infos) == 0 {
		return nil
	}
	return s.journal.Adopt(ctx, infos)
}

// copies are what the journal holds of some ids before the primary changes them.
type copies struct {
	found  []memdelay.Found
	losses int64
}

func (s *Store) copiesOf(ids []string) copies {
	c := copies{losses: s.lossCount.Load()}
	if s.journalEmpty() {
		c.found = make([]memdelay.Found, len(ids))
	} else {
		c.found = s.journal.Find(ids)
	}
	return c
}

// journalCancelled ends the copies of jobs that were cancelled by id; before is
// what copiesOf returned before that, at those places.
func (s *Store) journalCancelled(ctx context.Context, now job.Time, ids []string, before copies, at []int) {
	if s.journal == nil {
		return
	}
	s.ends.told(nil, ids)
	var ended []job.Info
	var look []string
	for i, f := range s.copiesOf(ids).found {
		switch {
		case !living(f):
		case f.Incarnation == before.found[at[i]].Incarnation:
			ended = append(ended, job.Info{Job: job.Job{ID: ids[i], Incarnation: f.Incarnation}, State: job.Cancelled, Attempt: f.Attempt, Next: now})
		default: // put at the same time
			look = append(look, ids[i])
		}
	}
	err := s.applyEnds(ctx, ended)
	if err == nil {
		err = s.copyAgain(ctx, look)
	}
	if err != nil {
		s.log.Error("a cancellation is not in the journal: it may be undone if Redis loses data", "error", err)
	}
	if len(ended) > 0 && before.losses != s.lossCount.Load() {
		s.cancelAgain(ctx, ended)
	}
}

// cancelAgain is endAgain for jobs that were cancelled.
func (s *Store) cancelAgain(ctx context.Context, ended []job.Info) {
	ids := make([]string, len(ended))
	for i := range ended {
		ids[i] = ended[i].ID
	}
	infos, err := s.journal.Get(ctx, ids)
	if err != nil {
		s.log.Error("jobs were cancelled while Redis lost data: they may come back", "jobs", len(ids), "error", err)
		return
	}
	here := s.disk().Find(ids)
	over := infos[:0]
	for i := range infos {
		if infos[i].State == job.Cancelled && here[i].State == "" {
			over = append(over, infos[i])
		}
	}
	s.tellAgain(ctx, over)
}

// tellAgain has the local store tell the primary how jobs ended.
func (s *Store) tellAgain(ctx context.Context, over []job.Info) {
	if len(over) == 0 {
		return
	}
	if err := unlessFull(s.disk().Adopt(context.WithoutCancel(ctx), over)); err != nil {
		s.log.Error("jobs ended while Redis lost data: they may come back", "jobs", len(over), "error", err)
	}
	refs := make([]job.Ref, len(over))
	for i := range over {
		refs[i] = over[i].Ref()
	}
	s.unmirror(refs) // they may have been read from there meanwhile
	signal(s.kick)
}

// finished tells how that incarnation of one of ids has ended, as the journal knows
// it, whatever the primary says: it may have lost that. Empty: it has not.
func (s *Store) finished(ids []string) func(i int, incarnation uint64) job.State {
	if s.journalEmpty() {
		return func(int, uint64) job.State { return "" }
	}
	found := s.journal.Find(ids)
	return func(i int, incarnation uint64) job.State {
		if living(found[i]) || found[i].Incarnation != incarnation {
			return ""
		}
		return found[i].State
	}
}

// unfinished drops deliveries of the primary whose job is over, and tells it so.
func (s *Store) unfinished(ds []job.Delivery) []job.Delivery {
	if len(ds) == 0 || s.journalEmpty() {
		return ds
	}
	ids := make([]string, len(ds))
	for i := range ds {
		ids[i] = ds[i].ID
	}
	finished := s.finished(ids)
	keep := ds[:0]
	var over []job.MergeItem
	for i := range ds {
		d := &ds[i]
		state := finished(i, d.Incarnation)
		if state == "" {
			keep = append(keep, *d)
			continue
		}
		over = append(over, job.MergeItem{Info: job.Info{
			Job:   job.Job{ID: d.ID, Generated: d.Generated, Incarnation: d.Incarnation, Target: d.Target, Due: d.Due},
			State: state, Attempt: d.Attempt, Nonce: d.Nonce, Next: s.now(),
		}})
	}
	if len(over) > 0 && s.remote() {
		if _, err := s.mergeItems(context.Background(), over); err != nil {
			s.log.Warn("Redis delivers jobs that are over, and does not hear of it", "jobs", len(over), "error", err)
		}
	}
	return keep
}

// endAgain has the local store tell the primary that jobs are complete.
func (s *Store) endAgain(ctx context.Context, now job.Time, list []job.Settlement, res []job.SettleResult) {
	var infos []job.Info
	for i := range list {
		if t := &list[i]; t.Outcome == job.Complete && t.Target != "" && (res[i] == job.Settled || res[i] == job.Repeated) {
			infos = append(infos, job.Info{
				Job:   job.Job{ID: t.ID, Generated: t.Generated, Incarnation: t.Incarnation, Target: t.Target, Due: t.Due},
				State: job.Done, Attempt: t.Attempt, Nonce: t.Nonce, Next: now,
			})
		}
	}
	s.tellAgain(ctx, infos)
}
