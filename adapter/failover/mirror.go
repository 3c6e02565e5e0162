package failover

import (
	"context"
	"slices"
	"sync"

	"github.com/delaybridge/delaybridge/job"
)

// watch knows the calls that will add to the mirror once they return, and tells
// them which jobs must not be added any more: by then such a job may have been
// claimed and completed, and a copy of it would run a second time.
type watch struct {
	mu   sync.Mutex
	open []*watched
}

// watched is what happened since a call began.
type watched struct {
	ended map[string]uint64   // incarnations of jobs by id that ended or moved; zero: not known
	freed map[string]struct{} // ids of jobs whose lease ended, or got another owner
}

// begin starts watching for a call.
func (w *watch) begin() *watched {
	c := &watched{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, c)
	return c
}

// end stops it, and returns the jobs that ended or moved meanwhile.
func (w *watch) end(c *watched) map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = slices.DeleteFunc(w.open, func(o *watched) bool { return o == c })
	return c.ended
}

// gone notes a job that left the mirror.
func (w *watch) gone(refs ...job.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		if c.ended == nil {
			c.ended = make(map[string]uint64, len(refs))
		}
		for i := range refs {
			c.ended[refs[i].ID] = refs[i].Incarnation
		}
	}
}

// freed notes leases that are not any more as they were.
func (w *watch) freed(refs ...job.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		if c.freed == nil {
			c.freed = make(map[string]struct{}, len(refs))
		}
		for i := range refs {
			c.freed[refs[i].ID] = struct{}{}
		}
	}
}

// mirrorNear adds jobs that the primary had as pending or running when the call
// ended, unless they are beyond the horizon, known already, or gone since it
// began. It reports whether there was room for all.
func (s *Store) mirrorNear(c *watched, infos []job.Info) bool {
	s.move.Lock()
	defer s.move.Unlock()
	return s.addNear(s.watch.end(c), infos)
}

// addNear is mirrorNear for a call whose watch has ended, with s.move held.
func (s *Store) addNear(gone map[string]uint64, infos []job.Info) bool {
	until := s.now().Add(s.limits.Load().Horizon)
	infos = slices.DeleteFunc(infos, func(i job.Info) bool {
		_, left := gone[i.ID]
		return left || i.State != job.Running && (i.State != job.Pending || i.Next > until)
	})
	room := s.mirrorRoom()
	enough := len(infos) <= room
	if !enough {
		infos = infos[:room]
	}
	if len(infos) == 0 {
		return enough
	}
	ids := make([]string, len(infos))
	for i := range infos {
		ids[i] = infos[i].ID
	}
	here, copies, finished := s.disk().Find(ids), s.mirror.Find(ids), s.finished(ids)
	keep := infos[:0]
	for i := range infos {
		if finished(i, infos[i].Incarnation) == "" && here[i].State == "" && (copies[i].State == "" || copies[i].Incarnation < infos[i].Incarnation) {
			keep = append(keep, infos[i])
		}
	}
	s.toMirror(keep)
	return enough
}

// replaced forgets the copies of jobs that others have taken the place of in the
// primary.
func (s *Store) replaced(jobs []job.Job, res []job.PutResult) {
	var ids []string
	var by []uint64
	for i := range jobs {
		if jobs[i].Replace && res[i].Err == nil {
			ids, by = append(ids, jobs[i].ID), append(by, jobs[i].Incarnation)
		}
	}
	if len(ids) == 0 {
		return
	}
	s.move.Lock()
	defer s.move.Unlock()
	var old []job.Ref
	for i, f := range s.mirror.Find(ids) {
		if f.State != "" && f.Incarnation < by[i] {
			old = append(old, job.Ref{ID: ids[i], Incarnation: f.Incarnation})
		} else if f.State == "" {
			s.watch.gone(job.Ref{ID: ids[i]}) // it may be on its way
		}
	}
	s.watch.gone(old...)
	_ = s.mirror.Discard(context.Background(), old) // fails only when it is closed
}

// mirrorRoom is how many more jobs the mirror may hold.
func (s *Store) mirrorRoom() int {
	t, u := s.limits.Load(), s.mirror.Usage()
	if u.Bytes >= t.HorizonBytes {
		return 0
	}
	return max(0, t.HorizonJobs-u.Jobs)
}

// toMirror sets jobs of the mirror to the state given.
func (s *Store) toMirror(infos []job.Info) {
	if len(infos) == 0 {
		return
	}
	if err := s.mirror.Adopt(context.Background(), infos); err != nil {
		s.log.Error("jobs not mirrored: they will not be delivered if Redis fails before they are due", "jobs", len(infos), "error", err)
	}
}

// unmirror forgets jobs that have ended, or that another state is coming for.
func (s *Store) unmirror(refs []job.Ref) {
	if len(refs) == 0 {
		return
	}
	s.move.Lock()
	defer s.move.Unlock()
	s.watch.gone(refs...)
	_ = s.mirror.Discard(context.Background(), refs) // fails only when it is closed
}

// claimed notes deliveries of the primary. It returns those that are still in
// force: when the mode has changed meanwhile, the local store may have them by now.
func (s *Store) claimed(ds []job.Delivery) []job.Delivery {
	if ds = s.unfinished(ds); len(ds) == 0 {
		return ds
	}
	ids, infos := make([]string, len(ds)), make([]job.Info, len(ds))
	for i := range ds {
		d := &ds[i]
		ids[i] = d.ID
		infos[i] = job.Info{
			Job: d.Job, State: job.Running, Attempt: d.Attempt, Base: d.Base, Nonce: d.Nonce,
			Owner: d.Owner, Next: d.Deadline,
		}
	}
	s.move.Lock()
	defer s.move.Unlock()
	here, turned := s.disk().Find(ids), !s.remote()
	var behind []job.Info
	keep := ds[:0]
	running := infos[:0]
	for i := range ds {
		if same := here[i].State != "" && here[i].Incarnation == ds[i].Incarnation; same {
			if turned || over(here[i], &ds[i]) {
				continue
			}
			behind = append(behind, infos[i]) // a copy of a put that the primary took after all
		}
		keep, running = append(keep, ds[i]), append(running, infos[i])
	}
	s.toMirror(running)
	s.dropBehind(behind)
	return keep
}

// bring moves what the mirror has of ids to the local store, where the caller
// is about to act on them. The gate is held for reading.
func (s *Store) bring(ctx context.Context, ids []string) error {
	s.move.Lock()
	defer s.move.Unlock()
	return s.adopt(ctx, s.mirror.Take(ids))
}

// adopt makes jobs of the mirror the local store's. On failure they stay in the
// mirror. s.move is held.
func (s *Store) adopt(ctx context.Context, infos []job.Info) error {
	if len(infos) == 0 {
		return nil
	}
	ids := make([]string, len(infos))
	refs := make([]job.Ref, len(infos))
	for i := range infos {
		ids[i], refs[i] = infos[i].ID, infos[i].Ref()
	}
	s.watch.gone(refs...)
	// What is known here of an id is later than its copy.
	here := s.disk().Find(ids)
	fresh := make([]job.Info, 0, len(infos))
	for i := range infos {
		if here[i].State == "" {
			fresh = append(fresh, infos[i])
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := s.disk().Adopt(ctx, fresh); err != nil {
		s.toMirror(fresh)
		return err
	}
	return nil
}
