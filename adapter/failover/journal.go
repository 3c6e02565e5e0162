package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// journalled reports whether this bridge keeps a copy of j.
func (s *Store) journalled(j *job.Job) bool { return s.journal != nil && j.Journal == s.o.Bridge }

// journalEmpty reports whether the journal knows nothing.
func (s *Store) journalEmpty() bool {
	if s.journal == nil {
		return true
	}
	u := s.journal.Usage()
	return u.Jobs+u.Verdicts == 0
}

// watchEnds begins to watch for the ends of jobs if one of them is journalled; to
// be called before the primary may have them.
func (s *Store) watchEnds(jobs []job.Job) *ending {
	for i := range jobs {
		if s.journalled(&jobs[i]) {
			return s.watchEnd()
		}
	}
	return nil
}

func (s *Store) watchEnd() *ending { return s.ends.begin(s.lossCount.Load()) }

// refuseUnkept refuses those of jobs that ask for a journal that takes nothing now,
// and has put store the others. refused is false when there are none of the first.
func (s *Store) refuseUnkept(jobs []job.Job, put func([]job.Job) ([]job.PutResult, error)) (res []job.PutResult, refused bool, err error) {
	if s.journal == nil || !s.remote() {
		return nil, false, nil
	}
	var others []int
	for i := range jobs {
		if !s.journalled(&jobs[i]) {
			others = append(others, i)
		}
	}
	if len(others) == len(jobs) {
		return nil, false, nil
	}
	failed := s.journal.Usage().LogErr
	if failed == nil {
		return nil, false, nil
	}
	why := job.ErrUnavailable
	if errors.Is(failed, job.ErrFull) {
		why = job.ErrFull
	}
	res = make([]job.PutResult, len(jobs))
	for i := range jobs {
		if s.journalled(&jobs[i]) {
			res[i].Err = why.With("this bridge's journal takes nothing now: %v; send the job without Delay-Durability, or later", failed)
		}
	}
	if len(others) > 0 {
		err = s.putSome(jobs, others, res, put)
	}
	return res, true, err
}

// keep journals those of jobs that ask for it, now that the primary has them, and
// says so in res. c has watched since before that; nil: none asks for it.
func (s *Store) keep(ctx context.Context, c *ending, jobs []job.Job, res []job.PutResult) {
	s.journalReplaced(ctx, jobs, res)
	if c == nil {
		return
	}
	var infos []job.Info
	var at []int
	for i := range jobs {
		if r := &res[i]; s.journalled(&jobs[i]) && r.Err == nil && !r.Duplicate && r.Stored == job.StoredRedis {
			infos, at = append(infos, job.Info{Job: jobs[i], State: job.Pending, Next: jobs[i].Due}), append(at, i)
		}
	}
	err := s.copyAll(ctx, c, infos)
	for _, i := range at {
		if res[i].Stored = job.StoredBoth; err != nil {
			res[i].Err = unkept(err)
		}
	}
}

// unkept is the answer for a job whose copy could not be written.
func unkept(err error) error {
	if errors.Is(err, job.ErrFull) {
		return job.ErrFull.With("stored in Redis, but not in the journal as asked: %v", err)
	}
	return job.ErrUnavailable.With("stored in Redis, but not in the journal as asked: %v", err)
}

// journalReplaced forgets the copies of jobs that were replaced by others that are
// not journalled.
func (s *Store) journalReplaced(ctx context.Context, jobs []job.Job, res []job.PutResult) {
	var old []job.Ref
	for i := range jobs {
		if j := &jobs[i]; !j.Replace || s.journalled(j) || res[i].Err != nil || s.journalEmpty() {
			continue
		}
		if f := s.journal.Find([]string{jobs[i].ID})[0]; living(f) && f.Incarnation < jobs[i].Incarnation {
			old = append(old, job.Ref{ID: jobs[i].ID, Incarnation: f.Incarnation})
		}
	}
	if len(old) == 0 {
		return
	}
	if err := s.journal.Discard(context.WithoutCancel(ctx), old); err != nil {
		s.log.Error("copies of jobs that were replaced stay in the journal", "jobs", len(old), "error", err)
	}
}

// copyAll makes infos what the journal has of these jobs, which the primary has
// had in that state since c began to watch: those that ended meanwhile end here,
// too. What Redis has confirmed until now is made durable at the same time.
func (s *Store) copyAll(ctx context.Context, c *ending, infos []job.Info) error {
	if len(infos) == 0 {
		s.ends.end(c)
		return nil
	}
	remembered := make(chan error, 1)
	go func() { remembered <- s.remember() }()
	for i := range infos {
		if infos[i].State == job.Running { // the journal has no leases
			infos[i].State, infos[i].Next = job.Pending, infos[i].Due
		}
	}
	s.ends.apply(c, infos)
	err := s.journal.Adopt(context.WithoutCancel(ctx), infos)
	ended, look := s.ends.end(c)
	if err == nil {
		err = s.applyEnds(ctx, ended)
	}
	if err == nil && len(look) > 0 {
		err = s.copyAgain(ctx, look)
	}
	s.offerAgain(c.losses)
	return errors.Join(err, <-remembered)
}

// copyAgain makes the copies that the journal has of ids agree with the primary.
func (s *Store) copyAgain(ctx context.Context, ids []string) error {
	if s.journalEmpty() {
		return nil
	}
	var held []string
	for i, f := range s.journal.Find(ids) {
		if living(f) {
			held = append(held, ids[i])
		}
	}
	_, err := s.copyPrimary(ctx, held)
	return err
}

// copyPrimary journals what the primary has of those jobs that ask for it. It
// reports whether the primary has answered.
func (s *Store) copyPrimary(ctx context.Context, ids []string) (answered bool, err error) {
	if len(ids) == 0 {
		return true, nil
	}
	c := s.watchEnd()
	var infos []job.Info
	err = s.ask(ctx, func(ctx context.Context, p Primary) (err error) {
		infos, err = p.Get(ctx, ids)
		return err
	})
	if err != nil {
		s.ends.end(c)
		return false, fmt.Errorf("journal: look at jobs in Redis: %w", err)
	}
	var live, ended []job.Info
	for i := range infos {
		switch st := infos[i].State; {
		case st == job.Done || st == job.Cancelled:
			ended = append(ended, infos[i])
		case st != "" && s.journalled(&infos[i].Job):
			live = append(live, infos[i])
		}
	}
	return true, errors.Join(s.applyEnds(ctx, ended), s.copyAll(ctx, c, live))
}

// journalMoved journals jobs that come from the local store and ask for it: those
// that were merged, which the primary has in that state since c began to watch,
// and of the others what the primary has. It fails if that does not say it; a
// journal that fails is no reason to hold back jobs that the primary has.
func (s *Store) journalMoved(ctx context.Context, c *ending, merged []job.Info, done []memdelay.Exported) error {
	took := make(map[string]bool, len(merged))
	var infos []job.Info
	for _, i := range merged {
		if took[i.ID] = true; s.journalled(&i.Job) && i.State != job.Done && i.State != job.Cancelled {
			infos = append(infos, i)
		}
	}
	err := s.copyAll(ctx, c, infos)
	var kept []string
	for i := range done {
		if x := &done[i].Info; !took[x.ID] && s.journalled(&x.Job) {
			kept = append(kept, x.ID)
		}
	}
	answered, kerr := s.copyPrimary(ctx, kept)
	if !answered {
		return kerr
	}
	if err = errors.Join(err, kerr); err != nil {
		s.log.Error("jobs are back in Redis, but not in the journal as asked", "error", err)
	}
	return nil
}

// dropBehind forgets the copies here of jobs that the primary had taken after all,
// once the journal has those that ask for it. Nobody else has these deliveries yet,
// so they cannot end meanwhile.
func (s *Store) dropBehind(behind []job.Info) {
	if len(behind) == 0 {
		return
	}
	ctx := context.Background()
	var refs []job.Ref
	var kept []job.Info
	for i := range behind {
		refs = append(refs, behind[i].Ref())
		if s.journalled(&behind[i].Job) {
			kept = append(kept, behind[i])
		}
	}
	err := s.copyAll(ctx, s.watchEnd(), kept)
	if err == nil {
		err = s.disk().Discard(ctx, refs)
	}
	if err != nil {
		s.log.Warn("copies of jobs that Redis has delivered stay on this bridge's disk", "jobs", len(behind), "error", err)
	}
}

// journalMemory is how long the journal remembers what ended, and at most so many.
const (
	journalMemory = time.Hour
	journalNotes  = 1_000_000
)

// forgetEnds forgets what ended long ago.
func (s *Store) forgetEnds() {
	for memory := journalMemory; memory > time.Minute; memory /= 2 {
		s.journal.PruneVerdicts(s.now().Add(-memory))
		if s.journal.Usage().Verdicts <= journalNotes {
			return
		}
	}
}

// living reports whether f is a job that has not ended.
func living(f memdelay.Found) bool {
	return f.State != "" && f.State != job.Done && f.State != job.Cancelled
}
