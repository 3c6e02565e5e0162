package integration

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/nats-io/nats.go"
)

// One plain worker that takes its time gets what is due all at once, each job
// once: never more at a time than it can settle within the lease. The short
// form keeps the ratio of the work to the ack wait.
func TestSlowWorkerGetsEachJobOnce(t *testing.T) {
	const jobs = 1000
	work := pick(20*time.Millisecond, 100*time.Millisecond)
	onBothStores(t, func(t *testing.T, kind storeKind) {
		s := newSystem(t, kind)
		b := s.bridge("b1", func(c *adapter.Config) { c.AckWait = 300 * work })
		w := s.worker("slow.work", func(m *nats.Msg, d Delivery) {
			time.Sleep(work) // the work
			done(m, d)
		})
		due := time.Now().Add(time.Second).Truncate(time.Millisecond)
		s.flood(jobs, func(int) *nats.Msg { return s.at(due, "slow.work") })
		s.awaitCounts("all jobs delivered", func(c Counts) bool { return c.Delivered == jobs })
		s.verify(Once, []*nats.Conn{w}, b)
	})
}
