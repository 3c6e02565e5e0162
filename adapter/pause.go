package adapter

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// PauseStore keeps what is paused beyond the life of a bridge, and for its peers.
type PauseStore interface {
	LoadPauses(ctx context.Context) (job.Pauses, error)
	// SavePauses adds what p knows better to what is kept.
	SavePauses(ctx context.Context, p job.Pauses) error
}

const (
	// pausePoll is how often a bridge looks for pauses that it was not told of.
	pausePoll = 10 * time.Second
	// pauseMemory is how long the end of a pause is remembered: a bridge that was
	// away for longer may bring the pause back.
	pauseMemory = 30 * 24 * time.Hour
	// maxPauses bounds the patterns that are remembered.
	maxPauses = 1000
	// morePauses is room for as many with wildcards beyond them: who may pause single
	// targets must not keep an operator from pausing all.
	morePauses = 100
)

// pauses is what is paused. Every bridge merges what it finds in its stores and
// hears from its peers; the newest word on a pattern counts, so all come to the
// same.
//
//	Pause --> known --> dispatcher           the lanes stop
//	            |-----> stores               a file in data_dir; Redis
//	            '-----> <prefix>.sys.paused  the peers
//
// A store that cannot be reached is made up for by the loop, as is a message that
// a peer has missed. After a crash between any two steps the one of them that was
// done is found again: a pause that was not answered may have come into force.
type pauses struct {
	b     *Bridge
	heard chan *nats.Msg
	kick  chan struct{}

	mu    sync.Mutex
	known job.Pauses

	applying sync.Mutex // so that the lanes follow the newest
}

func newPauses(b *Bridge) *pauses {
	return &pauses{b: b, heard: make(chan *nats.Msg, 64), kick: make(chan struct{}, 1), known: job.Pauses{}}
}

// current returns the patterns that are paused, sorted.
func (p *pauses) current() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []string{}
	for pattern, said := range p.known {
		if said.Paused {
			out = append(out, pattern)
		}
	}
	slices.Sort(out)
	return out
}

// snapshot returns a copy of all that is known.
func (p *pauses) snapshot() job.Pauses {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.known)
}

// learn takes in what o knows better, and makes the lanes follow.
func (p *pauses) learn(ctx context.Context, o job.Pauses) (changed bool) {
	old := p.b.now().Add(-pauseMemory)
	p.mu.Lock()
	for pattern, said := range o {
		if _, err := subjects.NewMatcher([]string{pattern}); err != nil || !said.Paused && said.At < old {
			delete(o, pattern)
		}
	}
	changed = p.known.Merge(o)
	maps.DeleteFunc(p.known, func(_ string, said job.Pause) bool { return !said.Paused && said.At < old })
	p.mu.Unlock()
	if changed {
		p.apply(ctx)
	}
	return changed
}

// apply makes the lanes follow what is known.
func (p *pauses) apply(ctx context.Context) {
	p.applying.Lock()
	defer p.applying.Unlock()
	m, err := subjects.NewMatcher(p.current())
	if err != nil { // learn lets none in
		p.b.cfg.Logger.Error("pauses are not applied", "error", err)
		return
	}
	p.b.setAside(ctx, p.b.disp.pause(m))
}

// say gives the newest word on patterns, and returns once a store has it, if there
// is one.
func (p *pauses) say(ctx context.Context, patterns []string, paused bool) *job.Error {
	p.mu.Lock()
	said := job.Pauses{}
	for _, pattern := range patterns {
		said[pattern] = job.Pause{Paused: paused, At: max(p.b.now(), p.known[pattern].At+1)}
	}
	full := paused && p.full(patterns)
	p.mu.Unlock()
	if full {
		return job.ErrFull.With("%d targets are paused, or were in the last 30 days, which is as many as are remembered: pause several with one pattern", maxPauses)
	}
	err := p.save(ctx, said)
	if err != nil {
		return job.ErrUnavailable.With("nothing was changed: %v", err)
	}
	p.learn(ctx, said)
	p.tell()
	return nil
}

// full reports whether there is no room for one of patterns. p.mu is held.
func (p *pauses) full(patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		room := maxPauses
		if subjects.IsPattern(pattern) {
			room += morePauses
		}
		_, known := p.known[pattern]
		return !known && len(p.known) >= room
	})
}

// save has every store keep what was said; one that does is enough, the others
// follow.
func (p *pauses) save(ctx context.Context, said job.Pauses) (err error) {
	kept := false
	for _, s := range p.b.cfg.Pauses {
		if e := s.SavePauses(ctx, said); e != nil {
			err = e
		} else {
			kept = true
		}
	}
	if kept {
		return nil
	}
	return err
}

// tell publishes all that is known to the peers.
func (p *pauses) tell() {
	data, _ := json.Marshal(p.snapshot()) // strings and numbers cannot fail
	if err := p.b.out.Publish(subjects.Paused(p.b.cfg.Prefix), data); err != nil {
		p.b.log.reply.Log(p.b.cfg.Logger, "pauses not told to peers", "error", err)
	}
}

// sync takes in what the stores know, and gives them what they do not.
func (p *pauses) sync(ctx context.Context) {
	for _, s := range p.b.cfg.Pauses {
		ctx, cancel := context.WithTimeout(ctx, p.b.cfg.StoreTimeout)
		found, err := s.LoadPauses(ctx)
		if err == nil {
			p.learn(ctx, maps.Clone(found))
			if more := p.snapshot(); found.Merge(more) {
				err = s.SavePauses(ctx, more)
			}
		}
		cancel()
		if err != nil {
			p.notCompared(err)
		}
	}
}

// notCompared tells of a store that was not read or written: what is paused there
// may not be in force. Of the shared store that is known while it is away.
func (p *pauses) notCompared(err error) {
	level := slog.LevelWarn
	if m, ok := p.b.mode(); ok && m == job.ModeLocal {
		level = slog.LevelDebug
	}
	p.b.cfg.Logger.Log(context.Background(), level, "pauses not compared with a store", "error", err)
}

// startTimeout bounds what a start waits for stores that do not answer.
const startTimeout = 500 * time.Millisecond

// start looks for what is paused before anything is claimed.
func (p *pauses) start(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p.sync(ctx)
}

// loop follows the stores and the peers until ctx is done.
func (p *pauses) loop(ctx context.Context) {
	tick := time.NewTicker(pausePoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.sync(ctx)
		case <-p.kick:
			p.sync(ctx)
		case m := <-p.heard:
			p.hear(ctx, m)
		}
	}
}

// listen subscribes to what peers say.
func (p *pauses) listen() (*nats.Subscription, error) {
	return p.b.out.Subscribe(subjects.Paused(p.b.cfg.Prefix), func(m *nats.Msg) {
		select {
		case p.heard <- m:
		default: // the stores have it
		}
	})
}

// hear takes in what a peer says, and keeps it.
func (p *pauses) hear(ctx context.Context, m *nats.Msg) {
	var said job.Pauses
	if json.Unmarshal(m.Data, &said) != nil || len(said) > 2*maxPauses || !p.learn(ctx, said) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.b.cfg.StoreTimeout)
	defer cancel()
	if err := p.save(ctx, said); err != nil {
		p.b.cfg.Logger.Warn("pauses of a peer are not kept by this bridge", "error", err)
	}
}

// pause makes the lanes follow m, the patterns that are paused. It returns
// deliveries that must be set aside: they were claimed, and not yet published.
func (d *dispatcher) pause(m subjects.Matcher) (aside []*flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = m
	for _, l := range d.lanes {
		was := l.paused
		l.paused = m.Match(l.target)
		switch {
		case l.paused && !was:
			d.block(l)
			if l.ready.len()+l.early > 0 {
				aside = append(aside, d.takeReady(l)...)
			}
			d.feed(l) // others of a shared window
		case was && !l.paused:
			d.resume(l)
		}
	}
	return aside
}

// resume lets l's jobs flow again. d.mu is held.
func (d *dispatcher) resume(l *lane) {
	switch {
	case l.parked != notParked:
		l.probeAt = d.now()
		d.planProbe(l.probeAt)
	case !l.blocks():
		d.unblock(l)
	default:
		d.feed(l)
	}
	d.relearn.Store(true) // more of its jobs may be aside than it knows
	d.lookDue.Store(true)
	wake(d.wakeClaim)
}
