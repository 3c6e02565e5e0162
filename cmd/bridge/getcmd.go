package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/job"
)

func runGet(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	if err := k.parse(args, 1, anyNumber); err != nil {
		return err
	}
	return k.with(func(s *session) error {
		unknown := 0
		for i, id := range k.fs.Args() {
			j, err := s.Get(ctx, id)
			switch {
			case errors.Is(err, client.ErrUnknown):
				unknown++
				fmt.Fprintf(std.err, "%s: unknown: never put, or ended longer ago than ids are remembered\n", safe(id))
				continue
			case err != nil:
				return err
			case k.asJSON:
				err = printJSON(std.out, j)
			default:
				if i > 0 {
					fmt.Fprintln(std.out)
				}
				err = printJob(std.out, &j, time.Now())
			}
			if err != nil {
				return err
			}
		}
		if unknown > 0 {
			return fmt.Errorf("%d of %d jobs unknown", unknown, k.fs.NArg())
		}
		return nil
	})
}

func printJob(w io.Writer, j *api.Job, now time.Time) error {
	t := newTable(w)
	t.pair("id", safe(string(j.ID)))
	t.pair("target", safe(j.Target))
	t.pair("state", string(j.State))
	t.pair("due", both(j.Due, now))
	next := map[job.State]string{job.Pending: "next attempt", job.Running: "lease ends"}[j.State]
	if next == "" {
		next = "ended"
	}
	t.pair(next, both(j.Next, now))
	t.pair("attempt", attempts(j))
	for _, p := range []struct{ name, value string }{{"owner", j.Owner}, {"reason", j.Reason}, {"stored", j.Stored}} {
		if p.value != "" {
			t.pair(p.name, safe(p.value))
		}
	}
	if !j.Expires.IsZero() {
		t.pair("expires", both(j.Expires, now))
	}
	t.pair("payload", thousands(j.Bytes)+" bytes")
	return t.Flush()
}

// attempts says how many deliveries there were, and may be.
func attempts(j *api.Job) string {
	n := strconv.FormatUint(uint64(j.Attempt), 10)
	if j.MaxAttempts > 0 {
		n += "/" + strconv.FormatUint(uint64(j.MaxAttempts), 10)
	}
	return n
}

func runList(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	var f client.Filter
	state := k.fs.String("state", string(job.Pending), "`state`: pending, running or dead")
	k.fs.StringVar(&f.Target, "target", "", "only jobs of this target, or of a `pattern` like orders.>")
	k.fs.IntVar(&f.Limit, "limit", 20, "`number` of jobs at most")
	all := k.fs.Bool("all", false, "all jobs")
	k.fs.BoolVar(&f.Local, "local", false, "only what the disks of bridges hold, also while Redis cannot be reached")
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	if f.State = job.State(*state); !listable(f.State) {
		return badUsage(c, fmt.Errorf("--state: %q is none of pending, running, dead", *state))
	}
	if f.Limit < 1 {
		return badUsage(c, fmt.Errorf("--limit: %d is less than 1", f.Limit))
	}
	limit := f.Limit
	if f.Limit++; *all { // one more tells whether there are more
		limit, f.Limit = anyNumber, 0
	}
	return k.with(func(s *session) error { return s.list(f.State, s.List(ctx, f), limit) })
}

func listable(s job.State) bool { return s == job.Pending || s == job.Running || s == job.Dead }

// flushEvery bounds what is held back to align columns.
const flushEvery = 1000

// list prints up to limit jobs of a state.
func (s *session) list(state job.State, jobs iter.Seq2[api.Job, error], limit int) error {
	t := newTable(s.std.out)
	if !s.asJSON {
		t.row(listHead(state)...)
	}
	n := 0
	for j, err := range jobs {
		switch {
		case err != nil:
			_ = t.Flush() // what there was is shown; the error counts
			return err
		case n == limit:
			fmt.Fprintf(s.std.err, "there are more: --limit or --all\n")
			return t.Flush()
		case s.asJSON:
			if err := printJSON(s.std.out, j); err != nil {
				return err
			}
		default:
			t.row(listRow(state, &j, time.Now())...)
		}
		if n++; n%flushEvery == 0 {
			if err := t.Flush(); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}

func listHead(state job.State) []string {
	switch state {
	case job.Running:
		return []string{"ID", "TARGET", "LEASE ENDS", "ATTEMPT", "OWNER", "STORED"}
	case job.Dead:
		return []string{"ID", "TARGET", "DIED", "ATTEMPT", "REASON", "STORED"}
	}
	return []string{"ID", "TARGET", "DUE", "ATTEMPT", "BYTES", "STORED"}
}

func listRow(state job.State, j *api.Job, now time.Time) []string {
	detail := strconv.Itoa(j.Bytes)
	switch state {
	case job.Running:
		detail = safe(j.Owner)
	case job.Dead:
		detail = safe(j.Reason)
	}
	return []string{safe(string(j.ID)), safe(j.Target), relative(j.Next, now), attempts(j), detail, j.Stored}
}
