package adapter

import (
	"context"
	"slices"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/job"
)

// How settlements get into the store, and what becomes of them when it fails.

const (
	// minSettlePause is the pause after the first failed call; it doubles.
	minSettlePause = 10 * time.Millisecond
	// holdPause is how often settlements are tried again whose store could not be
	// reached.
	holdPause = time.Second
)

// settleNow settles s in the store, then answers who asked. A call that fails is
// repeated, with fewer at a time and others first, so that one settlement which
// the store cannot take does not keep the rest, nor those that come meanwhile; until
// each has succeeded or is of no use any more, or ctx is done.
func (b *Bridge) settleNow(ctx context.Context, s []settlement) {
	size, pause := len(s), minSettlePause
	for len(s) > 0 {
		n := min(size, len(s))
		if b.trySettle(ctx, s[:n]) {
			s, size, pause = s[n:], 2*size, minSettlePause
			continue
		}
		select {
		case <-ctx.Done():
			return // unless they are made up for, the leases run out and the jobs are delivered again
		case <-time.After(pause):
		}
		s = b.stillOfUse(slices.Concat(s[n:], b.settler.ended.take(nil), s[:n]))
		size, pause = max(1, n/2), min(2*pause, time.Second)
	}
}

// settleOrPass settles s with one call, for loops that must not wait for a store
// that fails: the settle loop gets what it has not taken.
func (b *Bridge) settleOrPass(ctx context.Context, s []settlement) {
	if len(s) > 0 && !b.trySettle(ctx, s) {
		b.settler.add(s...)
	}
}

// trySettle reports whether one call of the store has settled s.
func (b *Bridge) trySettle(ctx context.Context, s []settlement) bool {
	in := make([]job.Settlement, len(s))
	for i := range s {
		in[i] = s[i].Settlement
	}
	res, err := b.settleOnce(ctx, in)
	if err != nil {
		b.storeFailed("settle", err)
		for i := range s {
			s[i].tried = true
		}
		return false
	}
	b.settled(s, res)
	return true
}

// stillOfUse gives up those of s whose lease is over: the store finds that too,
// and the jobs are delivered again.
func (b *Bridge) stillOfUse(s []settlement) (rest []settlement) {
	now := b.now()
	var over []settlement
	for i := range s {
		if s[i].until > now {
			rest = append(rest, s[i])
			continue
		}
		over = append(over, s[i])
		b.metrics.settled(s[i].Outcome, job.Unreachable)
		b.tracing.settled(&s[i], job.Unreachable, endOf(b.tracing))
		b.log.settle.Log(b.cfg.Logger, "settlement given up: the store takes none, and the lease is over", "id", s[i].ID, "attempt", s[i].Attempt)
		if s[i].reply != "" {
			b.respond(b.out, s[i].reply, appendRefusal(nil, errNotSettled))
		}
	}
	b.disp.settled(over)
	return rest
}

var errTaken = job.ErrConflict.With("another worker owns this delivery")

var errNotSettled = job.ErrUnavailable.With("not settled: the store of the job cannot be reached; repeat it")

func (b *Bridge) settleOnce(ctx context.Context, s []job.Settlement) ([]job.SettleResult, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StoreTimeout)
	defer cancel()
	return b.store.Settle(ctx, b.now(), s)
}

// settled does what follows durable settlements. What was tried before may have been
// completed by the call whose answer was lost.
func (b *Bridge) settled(s []settlement, res []job.SettleResult) {
	failpoint.At(failpoint.Settled)
	s, res = b.hold(s, res)
	b.disp.settled(s)
	var buf []byte
	ended := endOf(b.tracing)
	for i := range s {
		e, r := &s[i], res[i]
		if e.tried && (r == job.Repeated || r == job.Stale && ends(e.Outcome) && e.Outcome != job.Complete) {
			r = job.Settled // most likely by the call whose answer was lost
		}
		if !ends(e.Outcome) && (r == job.Stale || r == job.Unknown) {
			b.disp.ended(e.Ref)
		}
		b.metrics.settled(e.Outcome, r)
		b.tracing.settled(e, r, ended)
		if r == job.Settled {
			b.follow(e)
		}
		if e.reply == "" {
			continue
		}
		buf = buf[:0]
		switch r {
		case job.Settled:
			if e.Outcome == job.Own {
				buf = b.appendOwned(buf, e)
			}
		case job.Taken:
			buf = appendRefusal(buf, errTaken)
		case job.Stale:
			buf = appendRefusal(buf, job.ErrStale)
		case job.Unknown:
			buf = appendRefusal(buf, job.ErrUnknown)
		case job.Unreachable:
			buf = appendRefusal(buf, errNotSettled)
		}
		b.respond(b.out, e.reply, buf)
	}
}

// hold keeps for later what could not be reached and nobody will repeat, while
// its lease lasts, and returns the others. What did not reach a worker is not
// kept: its lease runs out.
func (b *Bridge) hold(s []settlement, res []job.SettleResult) ([]settlement, []job.SettleResult) {
	if !slices.Contains(res, job.Unreachable) {
		return s, res
	}
	now := b.now()
	var rest []settlement
	var results []job.SettleResult
	for i := range s {
		e := &s[i]
		given := e.Outcome == job.Complete || e.Outcome == job.Retry || e.Outcome == job.Release && e.Spare || e.Outcome == job.Bury
		if res[i] == job.Unreachable && given && e.reply == "" && e.until > now {
			b.settler.held.add(*e)
			continue
		}
		rest, results = append(rest, *e), append(results, res[i])
	}
	return rest, results
}

// ends reports whether a settlement ends its delivery, so that it cannot be
// repeated with the same result.
func ends(o job.Outcome) bool { return o != job.Extend && o != job.Own }
