package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// A worker acknowledges in time, and the lease runs out in the store while the
// acknowledgement is on its way there. The job is done all the same.
func TestLeaseRunsOutBeforeTheAckIsStored(t *testing.T) {
	onBothStores(t, func(t *testing.T, kind storeKind) {
		const target = "lease.work"
		s := newSystem(t, kind)
		late := &lateCompletion{noticed: make(chan struct{}), acted: make(chan struct{})}
		s.wrap = func(store job.Store) job.Store { late.Store = store; return late }
		b := s.bridge("b1")
		w := s.worker(target, done)
		m := s.in(0, target)
		m.Header.Set("Delay-Ack-Wait", "300ms")
		m.Header.Set("Delay-Backoff", "1ms")
		s.accept(s.client(), m)
		s.awaitCounts("job delivered", func(c Counts) bool { return c.Delivered == 1 })
		s.verify(Once, []*nats.Conn{w}, b)
	})
}

// lateCompletion is a store in which the first completion takes so long that
// the lease is seen to have run out, and whoever acts on that comes first.
type lateCompletion struct {
	job.Store
	completion, notice, act sync.Once
	noticed, acted          chan struct{}
}

func (l *lateCompletion) Settle(ctx context.Context, now job.Time, s []job.Settlement) ([]job.SettleResult, error) {
	if s[0].Outcome == job.Complete {
		l.completion.Do(func() {
			<-l.noticed
			select {
			case <-l.acted:
			case <-time.After(100 * time.Millisecond): // nobody does
			}
		})
		return l.Store.Settle(ctx, now, s)
	}
	res, err := l.Store.Settle(ctx, now, s)
	l.act.Do(func() { close(l.acted) })
	return res, err
}

func (l *lateCompletion) Expired(ctx context.Context, now job.Time, max int) ([]job.Delivery, job.Time, error) {
	ds, next, err := l.Store.Expired(ctx, now, max)
	if len(ds) > 0 {
		l.notice.Do(func() { close(l.noticed) })
	}
	return ds, next, err
}
