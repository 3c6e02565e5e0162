package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// Get returns what the bridges know of a job; ErrUnknown: nothing (any more).
func (c *Client) Get(ctx context.Context, id string) (api.Job, error) {
	return call[api.Job](ctx, c, api.Get, api.ByID{ID: api.ID(id)})
}

// Cancel removes a job that is pending or dead. The answer is definite: it says
// whether the job was removed, is running, has finished, or is unknown.
func (c *Client) Cancel(ctx context.Context, id string) (api.Change, error) {
	return call[api.Change](ctx, c, api.Cancel, api.CancelRequest{ID: api.ID(id)})
}

// PurgeJob is Cancel of a job that is in a state, job.Pending or job.Dead. In the
// other one it stays, and the answer is that it has finished.
func (c *Client) PurgeJob(ctx context.Context, id string, state job.State) (api.Change, error) {
	return call[api.Change](ctx, c, api.Cancel, api.CancelRequest{ID: api.ID(id), State: state})
}

// Reschedule makes a pending job due after delay. The answer is definite, as that
// of Cancel.
func (c *Client) Reschedule(ctx context.Context, id string, delay time.Duration) (api.Change, error) {
	return call[api.Change](ctx, c, api.Reschedule, api.RescheduleRequest{ID: api.ID(id), In: delay.String()})
}

// RescheduleAt makes a pending job due at t. The answer is definite, as that of
// Cancel.
func (c *Client) RescheduleAt(ctx context.Context, id string, t time.Time) (api.Change, error) {
	return call[api.Change](ctx, c, api.Reschedule, api.RescheduleRequest{ID: api.ID(id), At: timeText(t)})
}

// Fire makes a pending job due now. The answer is definite, as that of Cancel.
func (c *Client) Fire(ctx context.Context, id string) (api.Change, error) {
	return call[api.Change](ctx, c, api.Fire, api.ByID{ID: api.ID(id)})
}

// Requeue makes a dead job pending, due now, with as many attempts as it had at
// first. The answer is definite, as that of Cancel.
func (c *Client) Requeue(ctx context.Context, id string) (api.Change, error) {
	return call[api.Change](ctx, c, api.Requeue, api.ByID{ID: api.ID(id)})
}

// Filter selects jobs.
type Filter struct {
	State  job.State // job.Pending (the default), job.Running or job.Dead
	Target string    // a target or a pattern of targets; empty: all
	Local  bool      // only what the disks of bridges hold, which answers also while Redis is away
	Limit  int       // jobs at most; zero: all
}

// pageSize is how many jobs are asked for at once.
const pageSize = 500

// List yields the jobs that f selects: pending ones in the order of their next
// attempt, dead ones in that of their death. A job that is in the state throughout,
// with the same time, comes exactly once. An error is the last thing that it yields.
func (c *Client) List(ctx context.Context, f Filter) iter.Seq2[api.Job, error] {
	return func(yield func(api.Job, error) bool) {
		r := api.ListRequest{State: f.State, Target: f.Target}
		if f.Local {
			r.Stored = job.StoredLocal
		}
		for left := f.Limit; ; {
			if r.Limit = pageSize; f.Limit > 0 {
				r.Limit = min(left, pageSize)
			}
			page, err := call[api.Page](ctx, c, api.List, r)
			if err != nil {
				yield(api.Job{}, err)
				return
			}
			for i := range page.Jobs {
				if !yield(page.Jobs[i], nil) {
					return
				}
			}
			left -= len(page.Jobs)
			if r.Cursor = page.Cursor; r.Cursor == "" || f.Limit > 0 && left <= 0 {
				return
			}
		}
	}
}

// Purge removes all jobs in a state, job.Pending or job.Dead, whose target is one or
// matches a pattern; > is all. It returns how many were removed. A bridge looks at as
// many as it can in a few seconds, and is asked until all were looked at.
func (c *Client) Purge(ctx context.Context, target string, state job.State) (int, error) {
	sum, r := 0, api.PurgeRequest{Target: target, State: state}
	for {
		a, err := call[api.Purged](ctx, c, api.Purge, r)
		sum += a.Purged
		if r.Cursor = a.Cursor; err != nil || r.Cursor == "" {
			return sum, err
		}
	}
}

// Pause stops the delivery of jobs of a target, or of the targets of a pattern, until
// Resume; they are still taken. It returns all that is paused now.
func (c *Client) Pause(ctx context.Context, target string) ([]string, error) {
	a, err := call[api.PauseState](ctx, c, api.Pause, api.TargetRequest{Target: target})
	return a.Paused, err
}

// Resume ends a Pause of the very same target or pattern; > ends all. It returns
// what is still paused.
func (c *Client) Resume(ctx context.Context, target string) ([]string, error) {
	a, err := call[api.PauseState](ctx, c, api.Resume, api.TargetRequest{Target: target})
	return a.Paused, err
}

// Stats returns the counts of one of the bridges.
func (c *Client) Stats(ctx context.Context) (api.StatsAnswer, error) {
	return call[api.StatsAnswer](ctx, c, api.Stats, struct{}{})
}

// Workers returns the workers that own their jobs.
func (c *Client) Workers(ctx context.Context) (api.WorkersAnswer, error) {
	return call[api.WorkersAnswer](ctx, c.unscoped(), api.Workers, struct{}{})
}

// Bridges returns the bridges that live.
func (c *Client) Bridges(ctx context.Context) (api.BridgesAnswer, error) {
	return call[api.BridgesAnswer](ctx, c.unscoped(), api.Bridges, struct{}{})
}

// Config returns the configuration of one of the bridges, secrets left out.
func (c *Client) Config(ctx context.Context) (api.ConfigAnswer, error) {
	return call[api.ConfigAnswer](ctx, c.unscoped(), api.Config, struct{}{})
}

// unscoped is c for the verbs that concern no target.
func (c *Client) unscoped() *Client {
	all := *c
	all.scope = ""
	return &all
}

// call asks a bridge on the subject of a verb.
func call[A any](ctx context.Context, c *Client, verb string, request any) (A, error) {
	var a A
	body, err := json.Marshal(request)
	if err != nil {
		return a, err
	}
	m := nats.NewMsg(subjects.API(c.o.Prefix, verb, c.scope))
	m.Data = body
	reply, err := c.ask(ctx, m)
	if err != nil {
		return a, err
	}
	if err := failure(reply); err != nil {
		return a, err
	}
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		return a, fmt.Errorf("answer on %s is not a bridge's: %w: %.100q", m.Subject, err, reply.Data)
	}
	return a, nil
}

// failure returns the error in an answer. One without a body of its own, such as
// that of a change which found no job, is an answer.
func failure(reply *nats.Msg) error {
	header := reply.Header.Get("Nats-Service-Error-Code")
	if header == "" {
		return nil
	}
	var f api.Failure
	var change api.Change
	switch err := json.Unmarshal(reply.Data, &f); {
	case err == nil && f.Error != nil:
		return f.Error
	case err == nil && json.Unmarshal(reply.Data, &change) == nil && change.Result != "":
		return nil
	}
	code, err := strconv.Atoi(header)
	if err != nil {
		code = ErrUnavailable.Code
	}
	return &Error{Code: code, Description: reply.Header.Get("Nats-Service-Error")}
}
