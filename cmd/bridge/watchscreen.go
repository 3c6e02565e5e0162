package main

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/api"
)

// show shows what the last look found.
func (w *watch) show(now time.Time) error {
	var err error
	switch {
	case w.s.asJSON:
		err = w.showJSON(now)
	case w.terminal:
		_, err = w.out.Write(redraw(w.screen(now, terminalRows(w.out))))
	default:
		_, err = fmt.Fprintf(w.out, "%s %s\n", clock(now), w.line(now))
	}
	return err
}

// redraw writes a screen over the one before, without a flicker. The terminal cuts
// long lines off meanwhile: wrapped ones would push the first from the screen.
func redraw(screen []byte) []byte {
	screen = bytes.ReplaceAll(screen, []byte("\n"), []byte("\x1b[K\n"))
	return slices.Concat([]byte("\x1b[?7l\x1b[H"), screen, []byte("\x1b[J\x1b[?7h"))
}

func (w *watch) showJSON(now time.Time) error {
	if w.err != nil {
		return printJSON(w.out, map[string]string{"error": w.err.Error()})
	}
	return printJSON(w.out, struct {
		Stats   api.StatsAnswer `json:"stats"`
		Rates   rates           `json:"rates"`
		Bridges []api.Bridge    `json:"bridges"`
	}{w.stats, w.total(now), append([]api.Bridge{}, w.bridges...)})
}

// line is a look in one line, for logs.
func (w *watch) line(now time.Time) string {
	if w.err != nil {
		return w.err.Error()
	}
	r := w.total(now)
	return fmt.Sprintf("mode %s pending %d running %d dead %d local %d workers %d; per second: stored %.0f published %.0f completed %.0f retried %.0f dead %.0f refused %.0f",
		w.stats.Mode, w.stats.Jobs.Pending, w.stats.Jobs.Running, w.stats.Jobs.Dead, w.stats.Local, w.stats.Workers,
		r.Stored, r.Published, r.Completed, r.Retried, r.Dead, r.Refused)
}

// screen is a look for people, for a terminal of so many rows; zero: of any.
func (w *watch) screen(now time.Time, rows int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %s  %s  (ctrl-C ends)\n\n", program, w.server, clock(now))
	if w.err != nil {
		fmt.Fprintf(&b, "! %s\n\n", w.err)
	}
	a, r := &w.stats, w.total(now)
	if a.Bridge != "" {
		t := newTable(&b)
		t.row("PENDING", "NEXT DUE", "RUNNING", "DEAD", "ONLY ON DISK", "WORKERS")
		t.row(thousands(a.Jobs.Pending), relative(a.Due, now), thousands(a.Jobs.Running), thousands(a.Jobs.Dead), thousands(a.Local), thousands(a.Workers))
		_ = t.Flush() // to memory
		if !a.Counted {
			fmt.Fprintf(&b, "%s\n", notCounted(a)[1:])
		}
		fmt.Fprintln(&b)
		t = newTable(&b)
		t.row("PER SECOND", "stored", "published", "completed", "retried", "dead", "refused")
		t.row("", each(r.Stored), each(r.Published), each(r.Completed), each(r.Retried), each(r.Dead), each(r.Refused))
		_ = t.Flush()
		fmt.Fprintln(&b)
	}
	w.screenRest(&b)
	events := w.events
	if rows > 0 {
		// The last row is the cursor's, and two are the heading's.
		room := rows - 1 - bytes.Count(b.Bytes(), []byte("\n")) - 2
		events = events[max(0, min(len(events), len(events)-room)):]
	}
	if len(events) > 0 {
		fmt.Fprintln(&b, "\nEVENTS")
	}
	for _, e := range events {
		fmt.Fprintf(&b, "%s  %s\n", clock(e.at), e)
	}
	return firstLines(b.Bytes(), rows-1)
}

// firstLines cuts text after n lines, if n is more than 0.
func firstLines(text []byte, n int) []byte {
	end := 0
	for ; n > 0; n-- {
		line := bytes.IndexByte(text[end:], '\n')
		if line < 0 {
			return text
		}
		if end += line + 1; n == 1 {
			return text[:end]
		}
	}
	return text
}

func (w *watch) screenRest(b *bytes.Buffer) {
	t := newTable(b)
	for _, p := range w.bridges {
		t.row("bridge", safe(p.ID), p.Mode, p.CircuitState, "heard "+ago(p.SeenMS))
	}
	if len(w.stats.Paused) > 0 {
		t.row("paused", safeAll(w.stats.Paused))
	}
	for i, p := range w.stats.Parked {
		if i == shownEvents {
			t.row("parked", fmt.Sprintf("and %d more", len(w.stats.Parked)-i))
			break
		}
		t.row("parked", safe(p.Target), safe(p.Reason))
	}
	_ = t.Flush()
}

func each(perSecond float64) string { return fmt.Sprintf("%.1f", perSecond) }
