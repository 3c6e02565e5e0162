package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// change asks for one change of a job.
type change func(ctx context.Context, id string) (api.Change, error)

func runCancel(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	if err := k.parse(args, 1, anyNumber); err != nil {
		return err
	}
	return k.with(func(s *session) error { return s.changeAll(ctx, k.fs.Args(), "cancelled", s.Cancel) })
}

func runFire(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	if err := k.parse(args, 1, anyNumber); err != nil {
		return err
	}
	return k.with(func(s *session) error { return s.changeAll(ctx, k.fs.Args(), "fired", s.Fire) })
}

func runReschedule(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	var w when
	w.register(k.fs)
	if err := k.parse(args, 1, anyNumber); err != nil {
		return err
	}
	err := w.parse()
	if err == nil && w.in == nil && w.at == nil {
		err = errors.New("give --in or --at")
	}
	if err != nil {
		return badUsage(c, err)
	}
	return k.with(func(s *session) error {
		return s.changeAll(ctx, k.fs.Args(), "rescheduled", func(ctx context.Context, id string) (api.Change, error) {
			if w.time.IsZero() {
				return s.Reschedule(ctx, id, w.delay)
			}
			return s.RescheduleAt(ctx, id, w.time)
		})
	})
}

// changeAll makes a change to every job and says what became of each. It fails
// unless all were done.
func (s *session) changeAll(ctx context.Context, ids []string, done string, f change) error {
	failed := 0
	for _, id := range ids {
		a, err := f(ctx, id)
		if err != nil {
			return err
		}
		if a.Result != job.ResultDone {
			failed++
		}
		if err := s.printChange(s.std.out, &a, done); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d jobs not %s", failed, len(ids), done)
	}
	return nil
}

func (s *session) printChange(w io.Writer, a *api.Change, done string) error {
	if s.asJSON {
		return printJSON(w, a)
	}
	text := fmt.Sprintf("not %s: %s", done, a.Result)
	switch a.Result {
	case job.ResultDone:
		if text = done; !a.Due.IsZero() {
			text += ", due " + both(a.Due, time.Now())
		}
	case job.ResultRunning:
		text = fmt.Sprintf("not %s: running, attempt %d, at %s", done, a.Attempt, safe(a.Owner))
	}
	_, err := fmt.Fprintf(w, "%s %s\n", safe(string(a.ID)), text)
	return err
}

// when is a time as --in or --at give it.
type when struct {
	in, at *string // nil: not given
	delay  time.Duration
	time   time.Time // zero: after delay
}

func (w *when) register(fs *flag.FlagSet) {
	fs.Func("in", "due after this `delay`, e.g. 90s, 1h30m, 7d", func(s string) error { w.in = &s; return nil })
	fs.Func("at", "due at this `time`: RFC 3339, Unix seconds or milliseconds", func(s string) error { w.at = &s; return nil })
}

// parse reads what is given. An empty text is no time: it is a variable that was
// not set, and not the wish for now.
func (w *when) parse() (err error) {
	switch {
	case w.in != nil && w.at != nil:
		return errors.New("--in and --at: give one of them")
	case w.in != nil:
		if w.delay, err = subjects.ParseHeaderDelay(*w.in); err != nil {
			return fmt.Errorf("--in: %w", err)
		}
	case w.at != nil:
		if w.time, err = subjects.ParseHeaderTime(*w.at); err != nil {
			return fmt.Errorf("--at: %w", err)
		}
	}
	return nil
}
