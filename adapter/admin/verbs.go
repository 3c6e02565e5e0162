package admin

import (
	"context"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
)

// verb is one kind of call.
type verb struct {
	name            string
	about           string
	request, answer any  // of these types
	changes         bool // something: it can be switched off, and is logged
	targeted        bool // it has a target form
	peers           bool // bridges ask each other
	run             func(*Service, context.Context, *call) (any, error)
}

var verbs []verb

func init() {
	verbs = []verb{
		{name: api.Get, about: "what is known of a job", request: api.ByID{}, answer: api.Job{},
			targeted: true, peers: true, run: (*Service).get},
		{name: api.List, about: "a page of jobs of one state, in the order of their next times", request: api.ListRequest{}, answer: api.Page{},
			targeted: true, peers: true, run: (*Service).list},
		{name: api.Cancel, about: "removes a pending or dead job", request: api.CancelRequest{}, answer: api.Change{},
			changes: true, targeted: true, peers: true, run: (*Service).cancelJob},
		{name: api.Reschedule, about: "gives a pending job a new due time", request: api.RescheduleRequest{}, answer: api.Change{},
			changes: true, targeted: true, peers: true, run: (*Service).reschedule},
		{name: api.Fire, about: "makes a pending job due now", request: api.ByID{}, answer: api.Change{},
			changes: true, targeted: true, peers: true, run: (*Service).fire},
		{name: api.Requeue, about: "makes a dead job pending again, and due now", request: api.ByID{}, answer: api.Change{},
			changes: true, targeted: true, peers: true, run: (*Service).requeue},
		{name: api.Purge, about: "removes all jobs of a target or pattern in one state", request: api.PurgeRequest{}, answer: api.Purged{},
			changes: true, targeted: true, peers: true, run: (*Service).purge},
		{name: api.Pause, about: "stops the delivery of a target or pattern", request: api.TargetRequest{}, answer: api.PauseState{},
			changes: true, targeted: true, run: (*Service).pause},
		{name: api.Resume, about: "ends a pause", request: api.TargetRequest{}, answer: api.PauseState{},
			changes: true, targeted: true, run: (*Service).resume},
		{name: api.Stats, about: "counts of jobs and of what the bridge did", request: statsRequest{}, answer: api.StatsAnswer{},
			targeted: true, run: (*Service).stats},
		{name: api.Workers, about: "the workers that own their jobs", request: struct{}{}, answer: api.WorkersAnswer{}, run: (*Service).workers},
		{name: api.Bridges, about: "the bridges of the prefix", request: struct{}{}, answer: api.BridgesAnswer{}, run: (*Service).bridges},
		{name: api.Config, about: "the configuration in force, without secrets", request: struct{}{}, answer: api.ConfigAnswer{}, run: (*Service).config},
	}
}

// peerVerb returns the verb of that name that peers may ask, or nil.
func peerVerb(name string) *verb {
	for i := range verbs {
		if v := &verbs[i]; v.name == name && v.peers {
			return v
		}
	}
	return nil
}

// local is what this bridge's disk alone holds.
func (s *Service) local() job.Index {
	if d, ok := s.o.Store.(job.Divided); ok {
		return d.Local()
	}
	return s.o.Store
}

// index is what a call looks at: of a peer, the disk alone.
func (s *Service) index(c *call) job.Index {
	if c.peer {
		return s.local()
	}
	return s.o.Store
}

// checkID checks the id of a job.
func checkID(id api.ID) error {
	switch {
	case id == "":
		return job.ErrHeader.With(`field "id" is missing or empty: give the id of a job`)
	case len(id) > maxID:
		return job.ErrHeader.With(`field "id" has %d bytes, at most %d are allowed`, len(id), maxID)
	}
	return nil
}

const maxID = 255

func decodeID(c *call) (id api.ID, err error) {
	var req api.ByID
	if err := decode(c.body, &req); err != nil {
		return "", err
	}
	return req.ID, checkID(req.ID)
}

// look returns what the index knows of a job, without a state when that is nothing
// that the call may know.
func look(ctx context.Context, index job.Index, c *call, id api.ID) (job.Info, error) {
	infos, err := index.Get(ctx, []string{string(id)})
	if err != nil {
		return job.Info{}, err
	}
	if infos[0].State == "" || !c.allows(infos[0].Target) {
		return job.Info{}, nil
	}
	return infos[0], nil
}

func (s *Service) get(ctx context.Context, c *call) (any, error) {
	id, err := decodeID(c)
	if err != nil {
		return nil, err
	}
	info, err := look(ctx, s.index(c), c, id)
	found, err := best(ctx, s, c, jobOf(&info), err, func(j api.Job) rank {
		switch j.State {
		case "":
			return nothing
		case job.Done, job.Cancelled:
			return ended
		}
		return living
	})
	if err == nil && found.State == "" {
		return nil, job.ErrUnknown.With("no job %.64q", id)
	}
	return found, err
}

func jobOf(i *job.Info) api.Job {
	return api.Job{
		ID: api.ID(i.ID), Target: i.Target, State: i.State, Due: api.At(i.Due), Next: api.At(i.Next),
		Attempt: i.Attempt, MaxAttempts: i.MaxAttempts, Expires: api.At(i.Expires), Owner: i.Owner,
		Stored: i.Stored, Reason: i.Reason, Bytes: len(i.Payload),
	}
}

// changeFunc changes one job in an index: whatever job has the id, or, unless that
// is zero, exactly this incarnation of it.
type changeFunc func(i job.Index, incarnation uint64) ([]job.Change, error)

// change makes a change to one job.
func (s *Service) change(ctx context.Context, c *call, id api.ID, f changeFunc) (api.Change, error) {
	own := api.Change{ID: id, Result: job.ResultUnknown}
	index := s.index(c)
	err := s.changeIn(ctx, index, c, &own, f)
	return best(ctx, s, c, own, err, func(ch api.Change) rank {
		switch ch.Result {
		case job.ResultUnknown, "":
			return nothing
		case job.ResultFinished:
			return ended
		}
		return living
	})
}

// changeIn leaves own as it is where the job is unknown. In the target form it means
// the very job that it has looked at; if another one has the id by now, it looks again.
func (s *Service) changeIn(ctx context.Context, index job.Index, c *call, own *api.Change, f changeFunc) error {
	for seen := uint64(0); ; {
		if c.target != "" {
			info, err := look(ctx, index, c, own.ID)
			if err != nil || info.State == "" || info.Incarnation == seen {
				return err
			}
			seen = info.Incarnation
		}
		changes, err := f(index, seen)
		if err != nil {
			return err
		}
		if seen == 0 || changes[0].Result != job.ResultUnknown {
			own.Result, own.Attempt, own.Owner = changes[0].Result, changes[0].Attempt, changes[0].Owner
			return nil
		}
	}
}

func (s *Service) cancelJob(ctx context.Context, c *call) (any, error) {
	var req api.CancelRequest
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	if err := checkID(req.ID); err != nil {
		return nil, err
	}
	if req.State != "" && req.State != job.Pending && req.State != job.Dead {
		return nil, job.ErrHeader.With(`field "state" is %.32q, in which no job is cancelled: use pending or dead, or leave it out`, req.State)
	}
	return s.change(ctx, c, req.ID, func(i job.Index, incarnation uint64) ([]job.Change, error) {
		l := job.Cancellation{ID: string(req.ID), Incarnation: incarnation, State: req.State}
		return i.Cancel(ctx, s.o.Bridge.Now(), []job.Cancellation{l})
	})
}

func (s *Service) reschedule(ctx context.Context, c *call) (any, error) {
	var req api.RescheduleRequest
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	if err := checkID(req.ID); err != nil {
		return nil, err
	}
	if (req.In == "") == (req.At == "") {
		return nil, job.ErrSchedule.With(`give either "in" or "at": a delay or a time`)
	}
	due, failure := s.o.Bridge.ParseDue(req.In, req.At)
	if failure != nil {
		return nil, failure
	}
	return s.move(ctx, c, job.Reschedule{ID: string(req.ID), Due: due})
}

func (s *Service) fire(ctx context.Context, c *call) (any, error) {
	id, err := decodeID(c)
	if err != nil {
		return nil, err
	}
	return s.move(ctx, c, job.Reschedule{ID: string(id), Due: s.o.Bridge.Now()})
}

func (s *Service) requeue(ctx context.Context, c *call) (any, error) {
	id, err := decodeID(c)
	if err != nil {
		return nil, err
	}
	return s.move(ctx, c, job.Reschedule{ID: string(id), Due: s.o.Bridge.Now(), Requeue: true})
}

// move gives a job a new due time.
func (s *Service) move(ctx context.Context, c *call, r job.Reschedule) (any, error) {
	own := false // it was done here, not by a peer
	change, err := s.change(ctx, c, api.ID(r.ID), func(i job.Index, incarnation uint64) ([]job.Change, error) {
		r.Incarnation = incarnation
		changes, err := i.Reschedule(ctx, []job.Reschedule{r})
		if err == nil && r.Requeue && changes[0].Result == job.ResultUnknown {
			err = notDead(ctx, i, &changes[0], incarnation)
		}
		own = err == nil && changes[0].Result == job.ResultDone
		return changes, err
	})
	if own {
		change.Due = api.At(r.Due)
		s.o.Bridge.DueAt(r.Due)
	}
	return change, err
}

// notDead makes the answer to a requeue definite for a job that is pending: the
// index says unknown of it.
func notDead(ctx context.Context, i job.Index, change *job.Change, incarnation uint64) error {
	infos, err := i.Get(ctx, []string{change.ID})
	if err == nil && infos[0].State != "" && (incarnation == 0 || infos[0].Incarnation == incarnation) {
		change.Result = job.ResultFinished
	}
	return err
}
