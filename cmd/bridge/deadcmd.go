package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// deadCommands look after dead jobs.
var deadCommands = []*command{
	{name: "dead ls", summary: "list dead jobs, those that died first at the top", run: runDeadList},
	{name: "dead requeue", args: "[ID...]", summary: "make dead jobs due now, with their attempts anew", run: runRequeue},
	{name: "dead purge", args: "[ID...]", summary: "remove dead jobs for good", run: runPurge},
}

// deadFilter selects dead jobs.
type deadFilter struct {
	target, reason string
	older          time.Duration
	all            bool
}

func (f *deadFilter) register(k *call, all string) {
	k.scoped()
	k.fs.StringVar(&f.target, "target", "", "only jobs of this target, or of a `pattern` like orders.>")
	k.fs.StringVar(&f.reason, "reason", "", "only jobs whose reason contains this `text`")
	k.fs.Func("older", "only jobs that died at least this `duration` ago, e.g. 12h, 7d", func(s string) (err error) {
		f.older, err = subjects.ParseHeaderDelay(s)
		return err
	})
	k.fs.BoolVar(&f.all, "all", false, all)
}

// narrows reports whether f leaves jobs out.
func (f *deadFilter) narrows() bool { return f.target != "" || f.reason != "" || f.older > 0 }

func (f *deadFilter) keeps(j *api.Job) bool {
	return strings.Contains(j.Reason, f.reason) && time.Since(j.Next.Time) >= f.older
}

// jobs yields the dead jobs that f selects.
func (f *deadFilter) jobs(ctx context.Context, s *session) iter.Seq2[api.Job, error] {
	return func(yield func(api.Job, error) bool) {
		for j, err := range s.List(ctx, client.Filter{State: job.Dead, Target: f.target}) {
			if err == nil && !f.keeps(&j) {
				continue
			}
			if !yield(j, err) {
				return
			}
		}
	}
}

func runDeadList(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	var f deadFilter
	f.register(k, "all dead jobs")
	limit := k.fs.Int("limit", 20, "`number` of jobs at most")
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	if *limit < 1 {
		return badUsage(c, fmt.Errorf("--limit: %d is less than 1", *limit))
	}
	if f.all {
		*limit = anyNumber
	}
	return k.with(func(s *session) error { return s.list(job.Dead, f.jobs(ctx, s), *limit) })
}

func runRequeue(ctx context.Context, c *command, std stdio, args []string) error {
	return onDead(ctx, c, std, args, "requeued", func(s *session) change { return s.Requeue })
}

func runPurge(ctx context.Context, c *command, std stdio, args []string) error {
	return onDead(ctx, c, std, args, "purged", func(s *session) change { return s.purgeOne })
}

// purgeTarget removes dead jobs that are selected by target alone, in a few calls.
func (s *session) purgeTarget(ctx context.Context, target string) error {
	n, err := s.Purge(ctx, cmp.Or(target, s.scope, ">"), job.Dead)
	w := &sweep{s: s, done: "purged", changed: n}
	return errors.Join(w.report(), err)
}

// purgeOne removes a job if it is dead: what happens to be pending under that id must
// not go. Of another one it says what that is.
func (s *session) purgeOne(ctx context.Context, id string) (api.Change, error) {
	a, err := s.PurgeJob(ctx, id, job.Dead)
	if err != nil || a.Result != job.ResultFinished {
		return a, err
	}
	if j, err := s.Get(ctx, id); err == nil && j.State != job.Dead {
		a.Result = job.Result(j.State)
	}
	return a, nil
}

// onDead makes a change to the dead jobs that the command line names or selects.
func onDead(ctx context.Context, c *command, std stdio, args []string, done string, f func(*session) change) error {
	k := newCall(c, std)
	var filter deadFilter
	filter.register(k, "all dead jobs (that the other flags select)")
	dryRun := k.fs.Bool("dry-run", false, "list the jobs, change nothing")
	if err := k.parse(args, 0, anyNumber); err != nil {
		return err
	}
	switch named := k.fs.NArg() > 0; {
	case named && (filter.narrows() || filter.all || *dryRun):
		return badUsage(c, errors.New("give ids, or flags that select jobs, not both"))
	case !named && !filter.narrows() && !filter.all:
		return badUsage(c, errors.New("which jobs? give ids, --target, --reason or --older, or --all"))
	}
	return k.with(func(s *session) error {
		switch {
		case k.fs.NArg() > 0:
			return s.changeAll(ctx, k.fs.Args(), done, f(s))
		case *dryRun:
			return s.list(job.Dead, filter.jobs(ctx, s), anyNumber)
		}
		if c.name == "dead purge" && filter.reason == "" && filter.older == 0 {
			return s.purgeTarget(ctx, filter.target)
		}
		w := &sweep{s: s, done: done, change: f(s)}
		return w.run(ctx, filter.jobs(ctx, s))
	})
}

const (
	// sweepJobs is how many jobs are looked up before they are changed, and
	// sweepCalls how many changes are under way at once.
	sweepJobs  = 1000
	sweepCalls = 16
)

// sweep changes all jobs of a list.
type sweep struct {
	s      *session
	done   string
	change change

	mu            sync.Mutex
	changed, left int
	err           error
}

func (w *sweep) run(ctx context.Context, jobs iter.Seq2[api.Job, error]) error {
	// A job that dies again while this runs would come again, for ever.
	seen := map[api.ID]bool{}
	var ids []string
	for j, err := range jobs {
		if err != nil {
			return errors.Join(w.report(), err)
		}
		if seen[j.ID] {
			continue
		}
		seen[j.ID] = true
		if ids = append(ids, string(j.ID)); len(ids) == sweepJobs {
			if w.batch(ctx, ids); w.err != nil {
				break
			}
			ids = ids[:0]
		}
	}
	if w.err == nil {
		w.batch(ctx, ids)
	}
	return errors.Join(w.report(), w.err)
}

// batch changes some jobs, several at a time.
func (w *sweep) batch(ctx context.Context, ids []string) {
	next := make(chan string)
	var calls sync.WaitGroup
	for range min(sweepCalls, len(ids)) {
		calls.Go(func() {
			for id := range next {
				w.one(ctx, id)
			}
		})
	}
	for _, id := range ids {
		next <- id
	}
	close(next)
	calls.Wait()
}

func (w *sweep) one(ctx context.Context, id string) {
	w.mu.Lock()
	failed := w.err != nil
	w.mu.Unlock()
	if failed {
		return
	}
	a, err := w.change(ctx, id)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && w.err == nil:
		w.err = err
		return
	case err != nil:
		return
	case a.Result == job.ResultDone:
		w.changed++
	default:
		w.left++
	}
}

func (w *sweep) report() error {
	if w.s.asJSON {
		return printJSON(w.s.std.out, map[string]int{w.done: w.changed, "left": w.left})
	}
	note := ""
	if w.left > 0 {
		note = fmt.Sprintf("; %s were not dead any more", thousands(w.left))
	}
	_, err := fmt.Fprintf(w.s.std.out, "%s jobs %s%s\n", thousands(w.changed), w.done, note)
	return err
}
