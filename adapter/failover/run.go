package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// Run watches the primary, turns from it and back, keeps the mirror and moves
// jobs home, until ctx is done.
func (s *Store) Run(ctx context.Context) {
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){s.probeLoop, s.slowLoop, s.mirrorLoop, s.moveLoop, s.journalLoop} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
}

// health is what the probes have shown.
type health struct {
	good, bad int       // in a row
	firstGood time.Time // of the good ones
	left      time.Time // when the primary was turned away from
	back      time.Time // when it was trusted again
	dwell     time.Duration
}

// probeLoop probes the primary, often while there is a reason to, and turns
// from it and back.
func (s *Store) probeLoop(ctx context.Context) {
	h := health{left: time.Now(), back: time.Now()}
	timer := time.NewTimer(s.limits.Load().ProbeEvery)
	defer timer.Stop()
	last := time.Now()
	was := s.Mode()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.suspicion:
			// At most one probe per ProbeSuspect, whatever the number of failures.
			if wait := time.Until(last.Add(s.limits.Load().ProbeSuspect)); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		last = time.Now()
		err := s.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		if mode := s.Mode(); mode != was {
			s.noteTurn(&h, was, mode)
			was = mode
		}
		s.judge(ctx, &h, err)
		if mode := s.Mode(); mode != was {
			s.noteTurn(&h, was, mode)
			was = mode
		}
		timer.Reset(max(0, s.probePause(&h)-time.Since(last)))
	}
}

func (s *Store) probePause(h *health) time.Duration {
	t := s.limits.Load()
	if h.bad > 0 && s.remote() {
		return t.ProbeSuspect
	}
	if !s.remote() {
		return min(t.ProbeEvery, time.Second)
	}
	return t.ProbeEvery
}

// probe asks the primary for a sign of life, and opens it when it was never
// reached.
func (s *Store) probe(ctx context.Context) error {
	p := s.primary.Load()
	if p == nil {
		err := s.connect(ctx)
		if err != nil && s.o.Permanent(err) {
			s.log.Error("Redis is there but cannot be used: jobs stay on this bridge's disk until that is mended", "error", err)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.Load().ProbeTimeout)
	defer cancel()
	return p.Probe(ctx)
}

// judge draws the consequence of a probe.
func (s *Store) judge(ctx context.Context, h *health, err error) {
	t := s.limits.Load()
	if was := s.answers.Swap(err == nil); !was && err == nil {
		signal(s.anew)
	}
	if err != nil {
		h.good, h.bad = 0, h.bad+1
		if s.remote() && h.bad >= t.ProbeFailures {
			s.trip(fmt.Sprintf("%d probes in a row failed: %v", h.bad, err))
		}
		if !s.remote() {
			s.askPeers(ctx)
		}
		return
	}
	if h.good++; h.good == 1 {
		h.firstGood = time.Now()
		s.goodSince.Store(h.firstGood.UnixNano())
	}
	h.bad = 0
	if s.remote() {
		s.direct.Store(false)
		s.lookForLosses(ctx, h)
		return
	}
	s.syncStates(ctx)
	waited := time.Since(h.left)
	if h.good < t.GoodProbes && !h.left.IsZero() || waited < max(h.dwell, t.Dwell) {
		return
	}
	if !s.o.Peers.Settled() && time.Since(h.firstGood) < t.PeerWait {
		return
	}
	if err := s.comeBack(ctx); err != nil {
		s.log.Warn("Redis answers but does not take over what this bridge holds", "error", err)
	}
}

// lookForLosses makes lost data good. With a journal that is done in local mode:
// what it knows to have ended must not be claimed.
func (s *Store) lookForLosses(ctx context.Context, h *health) {
	switch {
	case len(s.pendingLosses()) == 0:
	case s.journal == nil:
		_ = s.makeGood(ctx) // there is nothing to offer, so nothing that could fail
	default:
		s.trip("it has lost data, and takes back what the journal has")
		h.left = time.Time{} // nothing to wait for
		if s.remote() {      // there is nothing to turn to
			if err := s.makeGood(ctx); err != nil {
				s.log.Warn("Redis does not take back what the journal has", "error", err)
			}
		}
	}
}

// noteTurn keeps the times from which dwell counts.
func (s *Store) noteTurn(h *health, from, to job.Mode) {
	t := s.limits.Load()
	now := time.Now()
	switch {
	case to == job.ModeLocal:
		if h.dwell == 0 || now.Sub(h.back) > t.MaxDwell {
			h.dwell = t.Dwell
		} else {
			h.dwell = min(2*h.dwell, t.MaxDwell)
		}
		if !h.left.IsZero() {
			h.left = now
		}
		h.good = 0
	case from == job.ModeLocal:
		h.back, h.left = now, now
	}
}

// askPeers finds out whether this bridge alone is cut off.
func (s *Store) askPeers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Load().ProbeTimeout)
	defer cancel()
	s.foreign.Store(s.o.Peers.Reachable(ctx))
}

// slowLoop turns from a primary that answers, but too slowly.
func (s *Store) slowLoop(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if why := s.sensor.slow(); why != "" && s.remote() {
				s.trip(why)
			}
		}
	}
}

// trip turns from the primary to the local store, unless that cannot take over.
func (s *Store) trip(why string) {
	if err := s.localUsable(); err != nil {
		s.sensor.reset(*s.limits.Load())
		if now, last := time.Now().UnixNano(), s.refused.Load(); now-last > int64(refusedPause) && s.refused.CompareAndSwap(last, now) {
			s.log.Error("Redis fails and the local store cannot take over", "redis", why, "local", err)
		}
		return
	}
	s.turn.Lock()
	from := s.Mode()
	if from != job.ModeLocal {
		s.mode.Store(int32(job.ModeLocal))
		s.primary.Load().end()
	}
	s.turn.Unlock()
	if from != job.ModeLocal {
		s.log.Warn("Redis fails: jobs are held on this bridge's disk until it is back", "why", why)
		s.o.Observer.ModeChanged(from, job.ModeLocal, why)
		s.ProbeSoon()
	}
}

// refusedPause is the least time between two complaints that neither store works.
const refusedPause = 10 * time.Second

// comeBackTimeout bounds the last merge, while calls wait.
const comeBackTimeout = 300 * time.Millisecond

// comeBack returns to the primary: what happened to its own jobs first, so that
// nothing that has ended is claimed from it again.
func (s *Store) comeBack(ctx context.Context) error {
	s.goodSince.CompareAndSwap(0, time.Now().UnixNano())
	if err := s.makeGood(ctx); err != nil {
		return err
	}
	if err := s.localUsable(); err != nil && !errors.Is(err, job.ErrFull) {
		if err := s.abandon(ctx); err != nil {
			return err
		}
	}
	if err := s.syncAll(ctx); err != nil {
		return err
	}
	if err := s.turnBack(ctx); err != nil {
		return err
	}
	s.foreign.Store(false)
	s.o.Observer.ModeChanged(job.ModeLocal, job.ModeMigrating, "Redis answers")
	signal(s.kick)
	signal(s.anew)
	return nil
}

// abandon merges all that a local store holds whose log has failed for good, and
// goes on without that store. It is read again when the bridge is started anew;
// Redis knows then that it has all of it.
func (s *Store) abandon(ctx context.Context) error {
	if s.disk() != s.o.Local {
		return nil
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	for part := range s.disk().All(mergeBatch) {
		items := make([]job.MergeItem, len(part))
		for i := range part {
			items[i].Info = part[i].Info
		}
		if _, err := s.mergeItems(ctx, items); err != nil {
			return err
		}
	}
	s.log.Error("the local store cannot be written any more: all that it held is in Redis, and jobs are not safe from an outage until this bridge is started anew", "error", s.localUsable())
	s.local.Store(memdelay.New(memdelay.Options{}))
	return nil
}

// turnBack merges the last states while calls wait, and turns.
func (s *Store) turnBack(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	ctx, cancel := context.WithTimeout(ctx, comeBackTimeout)
	defer cancel()
	for busy := map[string]bool{}; ; {
		n, err := s.mergeStates(ctx, busy)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	if !s.o.Peers.Alone() {
		// Others may have changed the jobs whose copies were not needed.
		for len(s.mirror.TakeDue(farAhead, mergeBatch)) > 0 {
		}
	}
	s.sensor.reset(*s.limits.Load())
	s.direct.Store(false)
	s.turn.Lock()
	defer s.turn.Unlock()
	s.begin(s.primary.Load().Primary)
	s.mode.Store(int32(job.ModeMigrating))
	return nil
}

// farAhead is after every due time.
const farAhead = job.Time(1) << 62
