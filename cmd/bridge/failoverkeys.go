package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/adapter/failover"
)

// failoverKeys say when the bridge turns from Redis to its disk and back.
var failoverKeys = []*key{
	{name: "failover.hand_over", def: "250ms", unit: "duration", reload: true,
		help: "how long Redis has to confirm before jobs go to the disk", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.HandOver })},
	{name: "failover.probe_every", def: "3s", unit: "duration", reload: true,
		help: "pause between probes of Redis", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.ProbeEvery })},
	{name: "failover.probe_suspect", def: "300ms", unit: "duration", reload: true,
		help: "pause between probes after a call has failed", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.ProbeSuspect })},
	{name: "failover.probe_timeout", def: "200ms", unit: "duration", reload: true,
		help: "bound of one probe", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.ProbeTimeout })},
	{name: "failover.probe_failures", def: "3", unit: "probes", reload: true,
		help: "failed probes in a row that make the bridge work from its disk", set: limitCount(func(t *failover.Thresholds) *int { return &t.ProbeFailures })},
	{name: "failover.window", def: "5s", unit: "duration", reload: true,
		help: "time over which calls of Redis are judged", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.Window })},
	{name: "failover.failure_ratio", def: "0.5", unit: "number", reload: true,
		help: "share of failed calls above which the bridge works from its disk", set: limitNumber(func(t *failover.Thresholds) *float64 { return &t.FailureRatio })},
	{name: "failover.min_calls", def: "20", unit: "calls", reload: true,
		help: "least number of calls for that share to count", set: limitCount(func(t *failover.Thresholds) *int { return &t.MinCalls })},
	{name: "failover.max_timeouts", def: "10", unit: "calls", reload: true,
		help: "calls timed out in the window that have the same effect", set: limitCount(func(t *failover.Thresholds) *int { return &t.MaxTimeouts })},
	{name: "failover.max_waiting", def: "256", unit: "calls", reload: true,
		help: "calls waiting at once that have the same effect", set: limitCount(func(t *failover.Thresholds) *int { return &t.MaxWaiting })},
	{name: "failover.slow_factor", def: "10", unit: "number", reload: true,
		help: "so many times the usual 99th percentile of calls has the same effect", set: limitNumber(func(t *failover.Thresholds) *float64 { return &t.SlowFactor })},
	{name: "failover.slow_floor", def: "100ms", unit: "duration", reload: true,
		help: "but not below this", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.SlowFloor })},
	{name: "failover.good_probes", def: "3", unit: "probes", reload: true,
		help: "good probes in a row before Redis is trusted again", set: limitCount(func(t *failover.Thresholds) *int { return &t.GoodProbes })},
	{name: "failover.dwell", def: "10s", unit: "duration", reload: true,
		help: "least time away from Redis; doubled by each relapse", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.Dwell })},
	{name: "failover.max_dwell", unit: "duration", reload: true, defHelp: "5m, or failover.dwell if that is longer",
		help: "longest time away from a Redis that answers", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.MaxDwell })},
	{name: "failover.peer_wait", def: "15s", unit: "duration", reload: true,
		help: "how long leases are left alone for peers that have not found Redis again", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.PeerWait })},
	{name: "failover.horizon", def: "60s", unit: "duration", reload: true,
		help: "jobs in Redis that are due within it are kept in memory too, to be delivered without Redis", set: limitTime(func(t *failover.Thresholds) *time.Duration { return &t.Horizon })},
	{name: "failover.horizon_jobs", def: "100000", unit: "jobs", reload: true,
		help: "at most so many of them", set: limitCount(func(t *failover.Thresholds) *int { return &t.HorizonJobs })},
	{name: "failover.horizon_bytes", def: "64MiB", unit: "bytes", reload: true,
		help: "at most so many bytes of them", set: bytesOf(func(c *config) *int64 { return &c.failover.HorizonBytes })},
}

func limitTime(field func(*failover.Thresholds) *time.Duration) setter {
	return duration(func(c *config) *time.Duration { return field(&c.failover) })
}

func limitCount(field func(*failover.Thresholds) *int) setter {
	return positive(func(c *config) *int { return field(&c.failover) })
}

func limitNumber(field func(*failover.Thresholds) *float64) setter {
	return one(func(c *config, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f <= 0 {
			return fmt.Errorf("%q is not a number above 0", v)
		}
		*field(&c.failover) = f
		return nil
	})
}

// bytesOf takes a number of bytes above zero, with a unit or without.
func bytesOf(field func(*config) *int64) setter {
	return one(func(c *config, v string) error {
		number, shift := v, 0
		for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
			if n, ok := strings.CutSuffix(v, unit); ok {
				number, shift = n, 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 1 || n > math.MaxInt64>>shift {
			return fmt.Errorf("%q is not a number of bytes like 67108864, 64MiB or 1GiB", v)
		}
		*field(c) = n << shift
		return nil
	})
}
