package adapter

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// What operators ask of a bridge, beside its store; see adapter/admin.

// Now is the time that due times are compared with.
func (b *Bridge) Now() job.Time { return b.now() }

// ID is the bridge's.
func (b *Bridge) ID() string { return b.cfg.ID }

// ParseDue reads a new due time as Delay-In or Delay-At spell it; exactly one of
// them is given.
func (b *Bridge) ParseDue(in, at string) (job.Time, *job.Error) {
	now := b.now()
	var due job.Time
	switch {
	case (in == "") == (at == ""):
		return 0, job.ErrSchedule.With("give one of in, such as \"90s\", and at, such as \"2030-01-02T15:04:05Z\"")
	case in != "":
		d, err := subjects.ParseHeaderDelay(in)
		if err != nil {
			return 0, job.ErrSchedule.With("in: %v", err)
		}
		due = now.Add(d)
	default:
		t, err := subjects.ParseHeaderTime(at)
		if err != nil {
			return 0, job.ErrSchedule.With("at: %v", err)
		}
		due = job.At(t)
	}
	return due, b.checkDue(due, now)
}

// DueAt makes the bridge look for a job that has become due at t.
func (b *Bridge) DueAt(t job.Time) { b.disp.due(t) }

// Pause stops the jobs of a target, or of a pattern, until Resume: they are taken in
// and wait, and expire as ever. What is delivered already goes on. It holds across
// restarts and for all bridges, which follow within pausePoll at the latest.
func (b *Bridge) Pause(ctx context.Context, pattern string) *job.Error {
	if _, err := subjects.NewMatcher([]string{pattern}); err != nil {
		return job.ErrTarget.With("%v", err)
	}
	return b.pauses.say(ctx, []string{pattern}, true)
}

// Resume ends Pause, of this very pattern; > ends all.
func (b *Bridge) Resume(ctx context.Context, pattern string) *job.Error {
	m, err := subjects.NewMatcher([]string{pattern})
	if err != nil {
		return job.ErrTarget.With("%v", err)
	}
	paused := b.pauses.current()
	switch {
	case pattern == ">":
		return b.pauses.say(ctx, paused, false)
	case slices.Contains(paused, pattern):
		return b.pauses.say(ctx, []string{pattern}, false)
	}
	for _, other := range paused {
		if o, _ := subjects.NewMatcher([]string{other}); m.Match(other) || o.Match(pattern) {
			return job.ErrConflict.With("%q is not paused by itself, but %q is: resume that", cut(pattern, 64), other)
		}
	}
	return nil
}

// Paused returns what is paused, sorted.
func (b *Bridge) Paused() []string { return b.pauses.current() }

// Parked returns up to limit targets whose jobs wait because nobody takes them.
func (b *Bridge) Parked(limit int) []api.Parked {
	out := []api.Parked{}
	b.disp.mu.Lock()
	for _, l := range b.disp.lanes {
		if l.parked != notParked {
			out = append(out, api.Parked{Target: l.target, Reason: l.parked.String()})
		}
	}
	b.disp.mu.Unlock()
	slices.SortFunc(out, func(x, y api.Parked) int { return cmp.Compare(x.Target, y.Target) })
	return out[:min(limit, len(out))]
}

// String says why a target is parked, for people.
func (p parkReason) String() string {
	return [...]string{"", "no responders", "no permission", "silent"}[p]
}

// Workers returns the workers that own jobs, sorted.
func (b *Bridge) Workers() []api.Worker {
	out := []api.Worker{}
	at := b.disp.ticks()
	b.disp.mu.Lock()
	for _, w := range b.disp.workers {
		out = append(out, api.Worker{
			ID: w.id, Subjects: slices.Clone(w.patterns), Capacity: w.capacity, Free: w.free(), Running: len(w.flights),
			Directed: w.directed, State: w.state(), SeenMS: at.sub(w.heard).Milliseconds(),
		})
	}
	b.disp.mu.Unlock()
	slices.SortFunc(out, func(x, y api.Worker) int { return cmp.Compare(x.ID, y.ID) })
	return out
}

// state is where w is in its life, see [worker].
func (w *worker) state() string {
	switch {
	case w.leaving:
		return "leaving"
	case w.suspect != 0:
		return "suspect"
	}
	return "live"
}

// Bridges returns this bridge and the live ones that share its store, sorted.
func (b *Bridge) Bridges() []api.Bridge {
	mode, _ := b.mode()
	out := append(b.exchange.peers.show(time.Now()), api.Bridge{ID: b.cfg.ID, CircuitState: mode.Circuit(), Mode: b.Mode()})
	slices.SortFunc(out, func(x, y api.Bridge) int { return cmp.Compare(x.ID, y.ID) })
	return out
}

// show returns the live peers.
func (s *states) show(now time.Time) (out []api.Bridge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.isLive(now) {
			out = append(out, api.Bridge{ID: p.Bridge, CircuitState: p.CircuitState, Mode: modeOf(p.CircuitState), SeenMS: now.Sub(p.seen).Milliseconds()})
		}
	}
	return out
}

// modeOf is the mode of that name in the terms of a circuit breaker.
func modeOf(circuit string) string {
	for _, m := range modes {
		if m.Circuit() == circuit {
			return m.String()
		}
	}
	return ""
}

// LivePeers returns the ids of the others.
func (b *Bridge) LivePeers() []string { return b.exchange.peers.live(time.Now()) }

// mode is the mode of the store; ok is false when it has none.
func (b *Bridge) mode() (m job.Mode, ok bool) {
	if b.exchange.store == nil {
		return job.ModeRedis, false
	}
	return b.exchange.store.Mode(), true
}

// Mode is redis, local or migrating; local also for a bridge that has no other
// store.
func (b *Bridge) Mode() string {
	m, ok := b.mode()
	if !ok {
		m = job.ModeLocal
	}
	return m.String()
}

// InFlight is how many deliveries of this bridge are not settled.
func (b *Bridge) InFlight() int { return b.disp.inFlight() }

// Totals count what the bridge did since it started.
func (b *Bridge) Totals() api.Totals { return b.metrics.totals() }
