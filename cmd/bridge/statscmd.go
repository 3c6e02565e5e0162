package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/subjects"
)

func runStats(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	return k.with(func(s *session) error {
		a, err := s.Stats(ctx)
		if err != nil {
			return err
		}
		if k.asJSON {
			return printJSON(std.out, a)
		}
		return printStats(std.out, &a, time.Now())
	})
}

func printStats(w io.Writer, a *api.StatsAnswer, now time.Time) error {
	t := newTable(w)
	t.pair("bridge", safe(a.Bridge)+" "+safe(a.Version)+", started "+relative(a.Started, now))
	t.pair("mode", a.Mode)
	pending := thousands(a.Jobs.Pending)
	if a.Jobs.Aside > 0 {
		pending += ", " + thousands(a.Jobs.Aside) + " of them set aside"
	}
	t.pair("pending", pending+notCounted(a))
	t.pair("next due", relative(a.Due, now))
	t.pair("running", thousands(a.Jobs.Running))
	t.pair("dead", thousands(a.Jobs.Dead))
	t.pair("only on its disk", thousands(a.Local))
	t.pair("in flight here", thousands(a.Flying))
	t.pair("workers", thousands(a.Workers))
	if len(a.Paused) > 0 {
		t.pair("paused", safeAll(a.Paused))
	}
	for _, p := range a.Parked {
		t.pair("parked", safe(p.Target)+": "+safe(p.Reason))
	}
	n := &a.Totals
	t.pair("since its start", fmt.Sprintf("%s stored, %s duplicate, %s refused", thousands(n.Stored), thousands(n.Duplicate), thousands(n.Refused)))
	t.pair("", fmt.Sprintf("%s published, %s completed, %s retried, %s expired, %s dead", thousands(n.Published), thousands(n.Completed),
		thousands(n.Retried), thousands(n.Expired), thousands(n.Buried)))
	return t.Flush()
}

// notCounted says which jobs the numbers leave out.
func notCounted(a *api.StatsAnswer) string {
	if a.Counted {
		return ""
	}
	return " (on this bridge's disk alone: Redis cannot be reached)"
}

func runWorkers(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	return k.with(func(s *session) error {
		a, err := s.Workers(ctx)
		if err != nil {
			return err
		}
		if a.LeftOff > 0 {
			fmt.Fprintf(std.err, "%s more workers, for which the answer has no room\n", thousands(a.LeftOff))
		}
		if k.asJSON {
			return printEach(std.out, a.Workers)
		}
		t := newTable(std.out)
		t.row("WORKER", "STATE", "RUNNING", "FREE", "CAPACITY", "LAST HEARD", "SUBJECTS")
		for _, w := range a.Workers {
			t.row(safe(w.ID), w.State, strconv.Itoa(w.Running), strconv.Itoa(w.Free), strconv.Itoa(w.Capacity), ago(w.SeenMS), safe(strings.Join(w.Subjects, ",")))
		}
		return t.Flush()
	})
}

func runBridges(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	return k.with(func(s *session) error {
		a, err := s.Bridges(ctx)
		if err != nil {
			return err
		}
		if k.asJSON {
			return printEach(std.out, a.Bridges)
		}
		t := newTable(std.out)
		t.row("BRIDGE", "MODE", "CIRCUIT", "LAST HEARD")
		for _, b := range a.Bridges {
			t.row(safe(b.ID), b.Mode, b.CircuitState, ago(b.SeenMS))
		}
		return t.Flush()
	})
}

// printEach prints a line of JSON for each of a list.
func printEach[T any](w io.Writer, list []T) error {
	for i := range list {
		if err := printJSON(w, list[i]); err != nil {
			return err
		}
	}
	return nil
}

// ago says how long ago something was.
func ago(ms int64) string {
	if ms == 0 {
		return "now"
	}
	return brief(time.Duration(ms)*time.Millisecond) + " ago"
}

func runPause(ctx context.Context, c *command, std stdio, args []string) error {
	return setPaused(ctx, c, std, args, func(s *session) pausing { return s.Pause })
}

func runResume(ctx context.Context, c *command, std stdio, args []string) error {
	return setPaused(ctx, c, std, args, func(s *session) pausing { return s.Resume })
}

// pausing pauses or resumes a target, and returns what is paused then.
type pausing = func(ctx context.Context, target string) ([]string, error)

func setPaused(ctx context.Context, c *command, std stdio, args []string, which func(*session) pausing) error {
	k := newCall(c, std)
	k.scoped()
	if err := k.parse(args, 1, 1); err != nil {
		return err
	}
	target := k.fs.Arg(0)
	if _, err := subjects.NewMatcher([]string{target}); err != nil {
		return badUsage(c, err)
	}
	return k.with(func(s *session) error {
		paused, err := which(s)(ctx, target)
		switch {
		case err != nil:
			return err
		case k.asJSON:
			return printJSON(std.out, api.PauseState{Paused: append([]string{}, paused...)})
		case len(paused) == 0:
			_, err = fmt.Fprintln(std.out, "nothing is paused")
		default:
			_, err = fmt.Fprintf(std.out, "paused: %s\n", safeAll(paused))
		}
		return err
	})
}
