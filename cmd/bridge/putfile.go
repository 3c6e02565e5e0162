package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	// batchJobs and batchBytes bound what of a file is in memory at once.
	batchJobs  = 16_384
	batchBytes = 16 << 20
	// batchWait is how long a line is held back for others to come.
	batchWait = 200 * time.Millisecond
	// shownRefusals is how many refusals the summary spells out.
	shownRefusals = 10
)

// bulkPut puts the jobs of a file.
type bulkPut struct {
	s     *session
	in    *lineReader
	size  int64 // of the file; zero: not known
	read  int64 // of it
	began time.Time
	bar   io.Writer // nil: nobody looks

	lines []putLine
	items []client.Item // of the lines that could be read
	bytes int
	full  <-chan time.Time // the first of the lines has waited for others; nil: there is none

	last                                      int // line that was put, or tried
	accepted, duplicates, refused, unanswered int
	nobody                                    int // jobs that found no bridge
	first                                     []string
}

// putLine is a line that has been read.
type putLine struct {
	number int
	err    error // what is wrong with it
}

func putFile(ctx context.Context, s *session, name string) error {
	b := &bulkPut{s: s, began: time.Now()}
	in := s.std.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return badUsage(s.c, fmt.Errorf("--file: %w", err))
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			b.size = info.Size()
		}
		in = f
	}
	if isTerminal(s.std.err) {
		b.bar = s.std.err
	}
	b.in = &lineReader{r: bufio.NewReaderSize(in, 1<<20)}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := b.run(ctx)
	if err == nil || b.total() > 0 {
		b.summary()
	}
	if err == nil && b.failed() > 0 {
		err = fmt.Errorf("%s of %s jobs not put", thousands(b.failed()), thousands(b.total()))
	}
	return err
}

func (b *bulkPut) total() int { return b.accepted + b.duplicates + b.failed() }

func (b *bulkPut) failed() int { return b.refused + b.unanswered + b.nobody }

// run puts lines as they come: what is written to a pipe now and then must not wait
// until there is a batch of it, nor ctrl-C for the next line.
func (b *bulkPut) run(ctx context.Context) error {
	for lines := b.in.each(ctx); ; {
		var err error
		select {
		case <-ctx.Done():
			return b.interrupted()
		case <-b.full:
			err = b.flush(ctx)
		case l := <-lines:
			if errors.Is(l.err, io.EOF) {
				return b.flush(ctx)
			}
			if l.err != nil {
				return fmt.Errorf("read the file: %w", errors.Join(l.err, b.flush(ctx)))
			}
			if b.add(l); len(b.lines) == batchJobs || b.bytes >= batchBytes {
				err = b.flush(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (b *bulkPut) interrupted() error { return fmt.Errorf("interrupted after line %d", b.last) }

// add takes a line into the batch.
func (b *bulkPut) add(l readLine) {
	item, err := readJobLine(l.text)
	if err == nil {
		b.items = append(b.items, item)
	} else {
		err = lineRefusal(err)
	}
	b.lines = append(b.lines, putLine{l.number, err})
	b.bytes += len(l.text)
	b.read = l.read
	if b.full == nil {
		b.full = time.After(batchWait)
	}
}

// lineRefusal gives what is wrong with a line the codes that a bridge would.
func lineRefusal(err error) error {
	if errors.Is(err, subjects.ErrSchedule) {
		return client.ErrSchedule.With("%s", strings.TrimPrefix(err.Error(), "--"))
	}
	return client.ErrHeader.With("%v", err)
}

// flush puts what has been read. It fails when there is no use in going on.
func (b *bulkPut) flush(ctx context.Context) error {
	var results []client.Result
	if len(b.items) > 0 {
		results, _ = b.s.ScheduleMany(ctx, b.items) // each result has its error
	}
	var nobody error // the others have results too
	for _, l := range b.lines {
		r := client.Result{Err: l.err}
		if l.err == nil {
			r, results = results[0], results[1:]
		}
		if errors.Is(r.Err, client.ErrNoBridge) {
			nobody = r.Err
		}
		if err := b.result(l.number, r); err != nil {
			return err
		}
		b.last = l.number
	}
	clear(b.items) // the payloads may go
	b.items, b.lines, b.bytes, b.full = b.items[:0], b.lines[:0], 0, nil
	b.progress()
	if ctx.Err() != nil {
		return b.interrupted()
	}
	return nobody
}

// result counts and prints what became of one line.
func (b *bulkPut) result(line int, r client.Result) error {
	b.count(r)
	if r.Err != nil && !errors.Is(r.Err, client.ErrNoBridge) && len(b.first) < shownRefusals {
		b.first = append(b.first, fmt.Sprintf("line %d: %s", line, safe(r.Err.Error())))
	}
	if !b.s.asJSON {
		return nil
	}
	o := struct {
		Line int    `json:"line"`
		ID   api.ID `json:"id,omitempty"` // any bytes
		*client.Receipt
		Due   string `json:"due,omitempty"`
		Error any    `json:"error,omitempty"`
	}{Line: line}
	var refused *client.Error
	switch {
	case r.Err == nil:
		o.ID, o.Receipt, o.Due = api.ID(r.Receipt.ID), &r.Receipt, r.Receipt.Due.Format(timeLayout)
	case errors.As(r.Err, &refused):
		o.Error = refused
	default:
		o.Error = map[string]string{"description": r.Err.Error()}
	}
	return printJSON(b.s.std.out, o)
}

func (b *bulkPut) count(r client.Result) {
	var refused *client.Error
	var denied *client.PermissionError
	switch {
	case r.Err == nil && r.Receipt.Duplicate:
		b.duplicates++
	case r.Err == nil:
		b.accepted++
	case errors.Is(r.Err, client.ErrNoBridge):
		b.nobody++
	case errors.As(r.Err, &refused), errors.As(r.Err, &denied):
		b.refused++
	default:
		b.unanswered++
	}
}

// progress redraws the bar.
func (b *bulkPut) progress() {
	if b.bar == nil {
		return
	}
	const width = 30
	done := ""
	if b.size > 0 {
		part := min(1, float64(b.read)/float64(b.size))
		full := int(part * width)
		done = fmt.Sprintf("[%s%s] %3.0f %% ", strings.Repeat("=", full), strings.Repeat(" ", width-full), part*100)
	}
	fmt.Fprintf(b.bar, "\r\x1b[K%s%s jobs, %s/s, %s not put", done, thousands(b.total()), thousands(b.rate()), thousands(b.failed()))
}

// rate is how many jobs were put in a second.
func (b *bulkPut) rate() int {
	return int(float64(b.total()) / max(time.Since(b.began).Seconds(), 1e-3))
}

func (b *bulkPut) summary() {
	if b.bar != nil {
		fmt.Fprint(b.bar, "\r\x1b[K")
	}
	w := b.s.std.err
	for _, line := range b.first {
		fmt.Fprintln(w, line)
	}
	if more := b.refused + b.unanswered - len(b.first); more > 0 { // of the others one error speaks
		fmt.Fprintf(w, "and %s more\n", thousands(more))
	}
	if !b.s.asJSON {
		w = b.s.std.out
	}
	fmt.Fprintf(w, "%s jobs: %s accepted, %s duplicate, %s refused", thousands(b.total()), thousands(b.accepted), thousands(b.duplicates), thousands(b.refused))
	if b.nobody > 0 {
		fmt.Fprintf(w, ", %s without a bridge to take them", thousands(b.nobody))
	}
	if b.unanswered > 0 {
		fmt.Fprintf(w, ", %s unanswered (they may be stored: put those that have ids again)", thousands(b.unanswered))
	}
	fmt.Fprintf(w, "; %.1fs, %s/s\n", time.Since(b.began).Seconds(), thousands(b.rate()))
}
