package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/nats-io/nats.go"
)

// restartWithin is how long after the start of a bridge with many pending jobs
// it takes a job, at the latest.
const restartWithin = 2 * time.Second

// A bridge that was killed with 100,000 pending jobs takes jobs again within two
// seconds of its start, and accepts what was completed while it was dead.
//
// This test measures, so it runs beside no other.
func TestRestartWithManyJobs(t *testing.T) {
	const jobs = 100_000
	for _, kind := range []storeKind{redisStore, localStore} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorks(t, kind)
			w.start()
			h := w.join("w1", "-capacity", "10", "-work", "500ms")
			running := w.sendAll(10, crewTarget)
			w.flood(jobs, func(int) *nats.Msg {
				m := w.in(time.Hour, "later.work")
				m.Data = nil
				return m
			})
			late := w.sendAll(10, crewTarget)
			for _, id := range late {
				w.awaitStarted(id, 1)
			}
			_, healed := w.Fault("kill", true)
			w.bridge.kill()
			for _, id := range append(running, late...) {
				w.awaitReport("the completion of "+id, func(r report.Report) bool { return r.Event == report.Done && r.ID == id })
			}
			begin := time.Now()
			w.start()
			id := w.send(0, crewTarget)
			took := time.Since(begin)
			healed()
			fmt.Printf("\nstart of a bridge with %d pending jobs (%s) to the answer of a put: %v\n\n", jobs, kind, took.Round(time.Millisecond))
			if took > restartWithin {
				t.Errorf("a job was taken %v after the start, want at most %v", took, restartWithin)
			}
			w.awaitStarted(id, 1)
			w.awaitReport("its completion", func(r report.Report) bool { return r.Event == report.Confirmed && r.ID == id })
			for _, id := range late {
				w.awaitReport("the answer to the completion of "+id, func(r report.Report) bool { return r.Event == report.Confirmed && r.ID == id })
			}
			h.end()
			w.bridge.end()
			w.wantOnce()
		})
	}
}
