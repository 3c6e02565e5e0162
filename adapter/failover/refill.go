package failover

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// refillEvery is how often the mirror is moved on. The horizon is read a
	// little further each time, so that no due job is missed.
	refillEvery = 5 * time.Second
	// reread is how often the whole horizon is read where peers may have put jobs
	// into the part that was read already.
	reread = 15 * time.Second
	// refillBatch is how many jobs are read at once.
	refillBatch = 2048
	// overdue is how long after its due time a job that nobody claims stays in
	// the mirror: its target takes nothing, and others need the room.
	overdue = 10 * time.Second
)

// mirrorLoop keeps the mirror a copy of what the primary has within the horizon.
// What this bridge stores is added by Put; this adds what others store and what
// comes into the horizon with time. It goes on in local mode once the primary
// answers again, for the time until it is trusted.
func (s *Store) mirrorLoop(ctx context.Context) {
	var read job.Time // up to here
	whole := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.anew:
			read = 0
		case <-timer.C:
		}
		if !s.o.Peers.Alone() && time.Since(whole) > reread {
			read, whole = 0, time.Now()
		}
		timer.Reset(min(refillEvery, s.limits.Load().Horizon/4))
		if !s.remote() && !s.answers.Load() {
			continue
		}
		if s.remote() {
			past := s.now().Add(-overdue)
			for len(s.mirror.TakeDue(past, mergeBatch)) > 0 {
			}
			for len(s.mirror.TakeExpired(past, mergeBatch)) > 0 {
			}
		}
		read = s.refill(ctx, read)
	}
}

// refill reads on from there to the horizon and returns how far it came.
func (s *Store) refill(ctx context.Context, from job.Time) job.Time {
	until := s.now().Add(s.limits.Load().Horizon)
	from = max(from, s.now().Add(-overdue))
	for batch := refillBatch; from < until && s.mirrorRoom() > 0 && ctx.Err() == nil; {
		c := s.watch.begin()
		infos, complete, err := s.upcoming(ctx, from, until, batch)
		enough := s.mirrorNear(c, infos)
		switch {
		case err != nil:
			if ctx.Err() == nil && s.remote() {
				s.log.Warn("mirror not refilled: jobs that others stored are not delivered if Redis fails before they are due", "error", err)
			}
			return from
		case !enough:
			return from // the rest is read when there is room
		case complete <= from:
			batch *= 2 // more than that are due at one instant
		default:
			from = complete
		}
	}
	return from
}

// upcoming reads from the primary.
func (s *Store) upcoming(ctx context.Context, from, until job.Time, limit int) (infos []job.Info, complete job.Time, err error) {
	err = s.ask(ctx, func(ctx context.Context, p Primary) (err error) {
		infos, complete, err = p.Upcoming(ctx, from, until, limit)
		return err
	})
	return infos, complete, err
}

// ask reads from the primary, which in local mode has not to be trusted yet.
func (s *Store) ask(ctx context.Context, read func(context.Context, Primary) error) error {
	if s.remote() {
		return s.call(ctx, mergeTimeout, read)
	}
	p := s.primary.Load()
	if p == nil {
		return errNoPrimary
	}
	ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	return read(ctx, p.Primary)
}
