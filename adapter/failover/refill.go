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
	// refillBatch is how many jobs are read at once.
	refillBatch = 2048
	// overdue is how long after its due time a job that nobody claims stays in
	// the mirror: its target takes nothing, and others need the room.
	overdue = 10 * time.Second
)

// mirrorLoop keeps the mirror a copy of what the primary has within the horizon.
// What this bridge stores is added by Put; this adds what others store and what
// comes into the horizon with time.
func (s *Store) mirrorLoop(ctx context.Context) {
	var read job.Time // up to here
	was := job.ModeLocal
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(refillEvery)
		mode := s.Mode()
		if mode == job.ModeLocal {
			was = mode
			continue
		}
		if was == job.ModeLocal {
			read = 0
		}
		was = mode
		s.mirror.TakeDue(s.now().Add(-overdue), s.mirror.Usage().Jobs)
		read = s.refill(ctx, read)
	}
}

// refill reads on from there to the horizon and returns how far it came.
func (s *Store) refill(ctx context.Context, from job.Time) job.Time {
	until := s.now().Add(s.limits.Load().Horizon)
	from = max(from, s.now().Add(-overdue))
	for from < until && s.mirrorRoom() > 0 && s.remote() {
		c := s.watch.begin()
		var infos []job.Info
		complete := from
		err := s.call(ctx, mergeTimeout, func(ctx context.Context, p Primary) (err error) {
			infos, complete, err = p.Upcoming(ctx, from, until, refillBatch)
			return err
		})
		s.mirrorNear(c, infos)
		if err != nil {
			if ctx.Err() == nil && s.remote() {
				s.log.Warn("mirror not refilled: jobs that others stored are not delivered if Redis fails before they are due", "error", err)
			}
			return from
		}
		if complete <= from {
			break
		}
		from = complete
	}
	return from
}
