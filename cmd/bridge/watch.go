package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	// shownEvents is how many events stay on the screen.
	shownEvents = 12
	// rateAge is how long the rates of a bridge count that has not answered since.
	rateAge = 30 * time.Second
	// waitingEvents may wait to be shown; then some are lost, which nats.go counts.
	waitingEvents = 1024
)

func runWatch(ctx context.Context, c *command, std stdio, args []string) error {
	k := newCall(c, std)
	k.scoped()
	every := k.fs.Duration("every", time.Second, "`pause` between two looks, at least 100ms")
	count := k.fs.Int("count", 0, "end after this `number` of looks; 0: at ctrl-C")
	if err := k.parse(args, 0, 0); err != nil {
		return err
	}
	if *every < 100*time.Millisecond {
		return badUsage(c, fmt.Errorf("--every: %v is less than 100ms", *every))
	}
	if *count < 0 {
		return badUsage(c, fmt.Errorf("--count: %d is less than 0", *count))
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return k.with(func(s *session) error {
		w := &watch{s: s, out: std.out, terminal: isTerminal(std.out) && !k.asJSON, rates: map[string]*sample{}}
		return w.run(ctx, *every, *count)
	})
}

// watch is what is known while it runs.
type watch struct {
	s        *session
	out      io.Writer
	terminal bool

	stats   api.StatsAnswer
	bridges []api.Bridge
	err     error // of the last look
	rates   map[string]*sample
	events  []seenEvent
	server  string
}

type seenEvent struct {
	at   time.Time
	data []byte
}

func (w *watch) run(ctx context.Context, every time.Duration, count int) error {
	events := make(chan *nats.Msg, waitingEvents)
	sub, err := w.s.nc.ChanSubscribe(subjects.Event(w.s.cfg.bridge.Prefix, ">"), events)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails on a closed connection alone
	w.server = withoutSecrets(w.s.cfg.nats.urls...)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for looks := 1; ; looks++ {
		w.look(ctx)
		if ctx.Err() != nil {
			return w.end()
		}
		if err := w.show(time.Now()); err != nil {
			return err
		}
		if looks == count {
			return w.err
		}
		if err := w.until(ctx, tick.C, events); err != nil {
			return err
		}
	}
}

// end leaves the screen to the shell.
func (w *watch) end() error {
	if !w.terminal {
		return nil
	}
	_, err := fmt.Fprintln(w.out)
	return err
}

// until takes events until the next look.
func (w *watch) until(ctx context.Context, tick <-chan time.Time, events <-chan *nats.Msg) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			return nil
		case m := <-events:
			if err := w.event(seenEvent{time.Now(), m.Data}); err != nil {
				return err
			}
		}
	}
}

// look asks a bridge; any of them may answer.
func (w *watch) look(ctx context.Context) {
	var stats api.StatsAnswer
	if stats, w.err = w.s.Stats(ctx); w.err != nil {
		w.err = w.s.explain(w.err)
		return
	}
	w.stats = stats
	s := w.rates[stats.Bridge]
	if s == nil {
		s = &sample{}
		w.rates[stats.Bridge] = s
	}
	s.take(time.Now(), stats.Started.Time, stats.Totals)
	if w.s.scope != "" {
		return // who is limited to a target may not ask for them
	}
	if b, err := w.s.Bridges(ctx); err == nil { // the next look tells, if it lasts
		w.bridges = b.Bridges
	}
}

// sample is what a bridge had counted when it answered last, and its rates then.
type sample struct {
	at      time.Time
	started time.Time
	totals  api.Totals
	rate    rates
}

// rates are per second.
type rates struct {
	Stored    float64 `json:"stored"`
	Published float64 `json:"published"`
	Completed float64 `json:"completed"`
	Retried   float64 `json:"retried"`
	Dead      float64 `json:"dead"`
	Refused   float64 `json:"refused"`
}

func (s *sample) take(now, started time.Time, t api.Totals) {
	was, secs := s.totals, now.Sub(s.at).Seconds()
	if !s.at.IsZero() && s.started.Equal(started) && secs > 0 {
		per := func(now, was uint64) float64 { return float64(now-was) / secs }
		s.rate = rates{per(t.Stored, was.Stored), per(t.Published, was.Published), per(t.Completed, was.Completed),
			per(t.Retried, was.Retried), per(t.Buried, was.Buried), per(t.Refused, was.Refused)}
	}
	s.at, s.started, s.totals = now, started, t
}

// total is the sum of the rates of the bridges that have answered lately.
func (w *watch) total(now time.Time) (sum rates) {
	for _, s := range w.rates {
		if now.Sub(s.at) > rateAge {
			continue
		}
		sum.Stored += s.rate.Stored
		sum.Published += s.rate.Published
		sum.Completed += s.rate.Completed
		sum.Retried += s.rate.Retried
		sum.Dead += s.rate.Dead
		sum.Refused += s.rate.Refused
	}
	return sum
}

// event shows an event, on a screen with the next look.
func (w *watch) event(e seenEvent) error {
	if w.terminal {
		w.events = append(w.events, e)
		w.events = w.events[max(0, len(w.events)-shownEvents):]
		return nil
	}
	if w.s.asJSON {
		if !json.Valid(e.data) {
			return nil
		}
		return printJSON(w.out, map[string]json.RawMessage{"event": e.data})
	}
	_, err := fmt.Fprintf(w.out, "%s event %s\n", clock(e.at), e)
	return err
}

// String is the event as a line.
func (e seenEvent) String() string {
	var fields map[string]any
	if err := json.Unmarshal(e.data, &fields); err != nil {
		return safe(string(e.data))
	}
	kind := fmt.Sprint(fields["type"])
	delete(fields, "type")
	delete(fields, "version")
	parts := []string{safe(kind)}
	for _, name := range slices.Concat(firstFields, slices.Sorted(maps.Keys(fields))) {
		v, ok := fields[name]
		if !ok {
			continue
		}
		delete(fields, name)
		if e, ok := v.(map[string]any); ok && e["description"] != nil {
			v = e["description"]
		}
		text := safe(fmt.Sprint(v))
		if strings.Contains(text, " ") && text[0] != '"' {
			text = strconv.Quote(text)
		}
		parts = append(parts, safe(name)+"="+text)
	}
	return strings.Join(parts, " ")
}

// firstFields are what people look for in an event.
var firstFields = []string{"id", "target", "reason", "why"}

func clock(t time.Time) string { return t.Format("15:04:05") }
