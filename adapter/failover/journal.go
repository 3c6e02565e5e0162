package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

const (
	// journalMemory is how long the journal remembers what ended.
	journalMemory = time.Hour
	// reconcileEvery is how often the journal is compared with the primary, for
	// jobs that ended elsewhere.
	reconcileEvery = 10 * time.Second
	// reconcileBatch is how many jobs are compared each time.
	reconcileBatch = 512
)

// journalled reports whether this bridge keeps a copy of j.
func (s *Store) journalled(j *job.Job) bool { return s.journal != nil && j.Journal == s.o.Bridge }

func (s *Store) journalEmpty() bool {
	if s.journal == nil {
		return true
	}
	u := s.journal.Usage()
	return u.Jobs == 0
}

// keep journals those of jobs that ask for it, now that the primary has them,
// and says so in res.
func (s *Store) keep(ctx context.Context, jobs []job.Job, res []job.PutResult) error {
	var infos []job.Info
	var at []int
	for i := range jobs {
		if s.journalled(&jobs[i]) && res[i].Err == nil && !res[i].Duplicate {
			infos, at = append(infos, job.Info{Job: jobs[i], State: job.Pending, Next: jobs[i].Due}), append(at, i)
		}
	}
	if len(infos) == 0 {
		return nil
	}
	err := s.journal.Adopt(context.WithoutCancel(ctx), infos)
	for _, i := range at {
		if res[i].Stored = job.StoredBoth; err != nil {
			res[i].Err = job.ErrUnavailable.With("stored in Redis, but not in the journal as asked: %v", err)
		}
	}
	return nil
}

// journalMoved journals jobs that come from the local store and ask for it.
func (s *Store) journalMoved(ctx context.Context, list []memdelay.Exported) error {
	if s.journal == nil {
		return nil
	}
	var infos []job.Info
	for i := range list {
		if j := &list[i].Info; s.journalled(&j.Job) && j.State != job.Done && j.State != job.Cancelled {
			info := *j
			if info.State == job.Running { // the journal has no leases
				info.State, info.Next = job.Pending, info.Due
			}
			infos = append(infos, info)
		}
	}
	if len(infos) == 0 {
		return nil
	}
	return s.journal.Adopt(context.WithoutCancel(ctx), infos)
}

// journalEnds removes the copies of jobs that settlements have ended, and
// remembers that they ended.
func (s *Store) journalEnds(ctx context.Context, now job.Time, list []job.Settlement, res []job.SettleResult) error {
	if s.journalEmpty() {
		return nil
	}
	var refs []job.Ref
	var dead []job.Settlement
	for i := range list {
		if res[i] != job.Settled && res[i] != job.Repeated {
			continue
		}
		switch list[i].Outcome {
		case job.Complete:
			refs = append(refs, list[i].Ref)
		case job.Bury:
			dead = append(dead, list[i])
		}
	}
	return errors.Join(
		s.journalEnd(ctx, now, job.Done, refs),
		s.journalDead(ctx, now, dead))
}

// endAgain has the local store tell the primary that jobs are complete.
func (s *Store) endAgain(ctx context.Context, now job.Time, list []job.Settlement, res []job.SettleResult) error {
	var infos []job.Info
	for i := range list {
		if t := &list[i]; t.Outcome == job.Complete && t.Target != "" && (res[i] == job.Settled || res[i] == job.Repeated) {
			infos = append(infos, job.Info{
				Job:   job.Job{ID: t.ID, Generated: t.Generated, Incarnation: t.Incarnation, Target: t.Target, Due: t.Due},
				State: job.Done, Attempt: t.Attempt, Nonce: t.Nonce, Next: now,
			})
		}
	}
	if len(infos) == 0 {
		return nil
	}
	defer signal(s.kick)
	return s.disk().Adopt(context.WithoutCancel(ctx), infos)
}

// journalCancelled is journalEnds for cancelled jobs.
func (s *Store) journalCancelled(ctx context.Context, now job.Time, ids []string) {
	if s.journalEmpty() {
		return
	}
	refs := make([]job.Ref, len(ids))
	for i := range ids {
		refs[i].ID = ids[i]
	}
	if err := s.journalEnd(ctx, now, job.Cancelled, refs); err != nil {
		s.log.Error("a cancellation is not in the journal: it may be undone if Redis loses data", "error", err)
	}
}

// journalEnd turns copies into notes that the jobs have ended.
func (s *Store) journalEnd(ctx context.Context, now job.Time, state job.State, refs []job.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	ids := make([]string, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	ctx = context.WithoutCancel(ctx)
	held, err := s.journal.Get(ctx, ids)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var infos []job.Info
	for i := range held {
		h, r := held[i], refs[i]
		if h.State == "" || h.State == job.Done || h.State == job.Cancelled || r.Incarnation != 0 && r.Incarnation != h.Incarnation {
			continue
		}
		h.State, h.Next, h.Attempt, h.Nonce = state, now, max(h.Attempt, r.Attempt), r.Nonce
		infos = append(infos, h)
	}
	if len(infos) == 0 {
		return nil
	}
	return s.journal.Adopt(ctx, infos)
}

// journalDead notes that jobs are dead: they stay in the journal.
func (s *Store) journalDead(ctx context.Context, now job.Time, list []job.Settlement) error {
	if len(list) == 0 {
		return nil
	}
	held, err := s.journal.Get(ctx, idsOf(list))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var infos []job.Info
	for i := range held {
		if h := held[i]; h.State == job.Pending && h.Incarnation == list[i].Incarnation {
			h.State, h.Next, h.Attempt, h.Reason = job.Dead, now, list[i].Attempt, list[i].Reason
			infos = append(infos, h)
		}
	}
	if len(infos) == 0 {
		return nil
	}
	return s.journal.Adopt(context.WithoutCancel(ctx), infos)
}

// lost is told by the primary that it has lost data.
func (s *Store) lost(shard int, why string) {
	s.lossCount.Add(1)
	s.lossMu.Lock()
	s.losses = append(s.losses, fmt.Sprintf("shard %d: %s", shard, why))
	s.lossMu.Unlock()
	s.log.Error("Redis has lost data", "shard", shard, "why", why)
	s.ProbeSoon()
}

func (s *Store) pendingLosses() []string {
	s.lossMu.Lock()
	defer s.lossMu.Unlock()
	return slices.Clone(s.losses)
}

// makeGood offers what the journal holds to a primary that has lost data: what
// ended first, then every copy.
func (s *Store) makeGood(ctx context.Context) error {
	losses := s.pendingLosses()
	if len(losses) == 0 {
		return nil
	}
	offered := 0
	if s.journal != nil {
		var err error
		if offered, err = s.offer(ctx); err != nil {
			return fmt.Errorf("journal not offered: %w", err)
		}
	}
	s.lossMu.Lock()
	s.losses = s.losses[len(losses):]
	s.lossMu.Unlock()
	s.o.Observer.DataLoss(losses[0], offered)
	return nil
}

func (s *Store) offer(ctx context.Context) (offered int, err error) {
	all := s.journal.Export(1<<31-1, false) // what ended comes first
	for part := range slices.Chunk(all, mergeBatch) {
		items := make([]job.MergeItem, len(part))
		for i := range part {
			items[i].Info = part[i].Info
			items[i].Offer = part[i].State != job.Done && part[i].State != job.Cancelled
		}
		res, err := s.mergeItems(ctx, items)
		if err != nil {
			return offered, err
		}
		for i := range res {
			if items[i].Offer && res[i] == job.Merged {
				offered++
			}
		}
	}
	return offered, nil
}

// journalLoop forgets what ended long ago, and copies of jobs that ended
// elsewhere.
func (s *Store) journalLoop(ctx context.Context) {
	if s.journal == nil {
		return
	}
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	cursor := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.journal.PruneVerdicts(s.now().Add(-journalMemory))
		if s.remote() && len(s.pendingLosses()) == 0 {
			cursor = s.reconcile(ctx, cursor)
		}
	}
}

// reconcile compares a page of the journal with the primary and returns the
// cursor of the next one.
func (s *Store) reconcile(ctx context.Context, cursor string) string {
	page, err := s.journal.List(ctx, job.Query{State: job.Pending, Limit: reconcileBatch, Cursor: cursor})
	if err != nil || len(page.Jobs) == 0 {
		return ""
	}
	ids := make([]string, len(page.Jobs))
	for i := range page.Jobs {
		ids[i] = page.Jobs[i].ID
	}
	infos, err := s.Get(ctx, ids)
	if err != nil {
		return cursor
	}
	var gone []job.Ref
	for i := range infos {
		if st := infos[i].State; st == "" || st == job.Done || st == job.Cancelled || infos[i].Incarnation > page.Jobs[i].Incarnation {
			gone = append(gone, job.Ref{ID: ids[i], Incarnation: page.Jobs[i].Incarnation})
		}
	}
	if len(s.pendingLosses()) > 0 {
		return "" // what the primary does not know may be what it lost
	}
	if err := s.journal.Discard(ctx, gone); err != nil {
		s.log.Warn("journal not tidied", "error", err)
	}
	return page.Cursor
}
