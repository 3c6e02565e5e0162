package adapter

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// moded is a store that goes on without the one that bridges share when that
// fails, as adapter/failover does.
type moded interface {
	Mode() job.Mode
	// ProbeSoon makes it look at once whether the shared store is there.
	ProbeSoon()
}

// leaseLister is a store that can tell of the leases on this bridge's disk while
// the store that bridges share is away.
type leaseLister interface {
	ListLocal(ctx context.Context, q job.Query) (job.Page, error)
}

// spiller is a store that can keep jobs on this bridge while the one that bridges
// share is too slow. Its results are those of Put.
type spiller interface {
	PutLocal(ctx context.Context, jobs []job.Job) ([]job.PutResult, error)
}

// The methods below are what a store that can degrade tells the bridge. None
// waits for anything.

// ModeChanged makes all loops look for jobs at once: they are in another store
// now.
func (b *Bridge) ModeChanged(from, to job.Mode, why string) {
	b.metrics.mode(to)
	b.disp.startOver()
	b.exchange.changed()
	wake(b.pauses.kick)
	switch to {
	case job.ModeLocal:
		b.event(eventDegraded, modeEvent{Bridge: b.cfg.ID, From: from.String(), To: to.String(), Why: why})
	case job.ModeRedis:
		wake(b.reconstruct)
		b.event(eventRecovered, modeEvent{Bridge: b.cfg.ID, From: from.String(), To: to.String(), Why: why})
	}
}

// Fallback counts jobs that the store handed over to this bridge's disk
// ("triggered"), spilled there ("spilled"), or could not keep there ("rejected").
func (b *Bridge) Fallback(status string, jobs int) {
	b.metrics.fallback(status, jobs)
}

// Recovery notes how long after the return of the shared store so many jobs are
// back there.
func (b *Bridge) Recovery(d time.Duration, jobs int) {
	for range jobs {
		b.metrics.recovery.Observe(d.Seconds())
	}
}

// Migrated tells that what happened meanwhile is in the shared store.
func (b *Bridge) Migrated(migration string, jobs int, took time.Duration) {
	b.tracing.migrated(migration, jobs, took)
	b.event(eventMigrated, migratedEvent{Bridge: b.cfg.ID, Migration: migration, Jobs: jobs, TookMS: took.Milliseconds()})
}

// Moved tells which jobs a migration has just moved.
func (b *Bridge) Moved(migration string, jobs []job.Info) { b.tracing.moved(migration, jobs) }

// Joined tells that a job which was put meanwhile and another one of its id are
// one now.
func (b *Bridge) Joined(migration string, j job.Info) {
	b.event(eventMigrated, migratedEvent{Bridge: b.cfg.ID, Migration: migration, Jobs: 1, ID: j.ID, Target: j.Target})
}

// DataLoss tells that the shared store has lost jobs.
func (b *Bridge) DataLoss(why string, offered int) {
	b.metrics.dataLosses.Inc()
	b.event(eventDataLoss, dataLossEvent{Bridge: b.cfg.ID, Why: why, Offered: offered})
}

// startOver makes every loop act as if it had just begun.
func (d *dispatcher) startOver() {
	d.relearn.Store(true)
	d.lookDue.Store(true)
	for _, ch := range []chan struct{}{d.wakeClaim, d.wakeFire, d.wakeLease} {
		wake(ch)
	}
}
