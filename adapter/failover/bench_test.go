package failover_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// BenchmarkMigration moves jobs of 256 bytes that an outage has left on the disk
// back to Redis, while others are put.
func BenchmarkMigration(b *testing.B) {
	const jobs = 100_000
	for b.Loop() {
		r := newRig(b, func(o *rigOptions) { o.local.MaxJobs = 2 * jobs })
		r.awaitMode(job.ModeRedis)
		r.down()
		batch := make([]job.Job, 256)
		for n := 0; n < jobs; n += len(batch) {
			for i := range batch {
				batch[i] = mk("", time.Hour)
				batch[i].Payload = make([]byte, 256)
			}
			r.put(batch...)
		}
		r.redis.Restart()
		r.awaitMode(job.ModeMigrating)
		start := time.Now()
		ctx, cancel := context.WithCancel(context.Background())
		var intake sync.WaitGroup
		put := 0
		intake.Go(func() {
			for ctx.Err() == nil {
				more := make([]job.Job, 64)
				for i := range more {
					more[i] = mk("during-"+strconv.Itoa(put+i), time.Hour)
				}
				r.put(more...)
				put += len(more)
			}
		})
		r.awaitMode(job.ModeRedis)
		took := time.Since(start).Seconds()
		cancel()
		intake.Wait()
		b.ReportMetric(jobs/took, "migrated/s")
		b.ReportMetric(float64(put)/took, "put/s")
		r.stop()
	}
}
