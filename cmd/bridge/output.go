package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/delaybridge/delaybridge/api"
)

// timeLayout is RFC 3339 with microseconds, the unit of due times.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// printJSON writes one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table aligns columns for people.
type table struct{ *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// row adds a line. Empty cells are a dash, so that columns stay readable.
func (t table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// pair adds a line with a name and a value.
func (t table) pair(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }

// safe quotes what a terminal would not show as it is: ids, reasons and the like
// are written by others.
func safe(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return strconv.Quote(s)
		}
	}
	return s
}

// safeAll is safe for a list.
func safeAll(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, safe(s))
	}
	return strings.Join(out, ", ")
}

// relative says how far t is from now: in 3m12s, or 3m12s ago.
func relative(t api.Time, now time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "-"
	case d.Abs() < time.Millisecond:
		return "now"
	case d > 0:
		return "in " + brief(d)
	default:
		return brief(-d) + " ago"
	}
}

// brief writes a duration with its two largest units.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// thousands writes a number with commas.
func thousands[N int | uint64 | int64](n N) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// both writes a time for people, absolute and relative.
func both(t api.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(timeLayout) + " (" + relative(t, now) + ")"
}
