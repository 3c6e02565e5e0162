package main

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// registerBuild registers which program this is, which bridge, and since when.
func registerBuild(reg prometheus.Registerer, c *config) error {
	return register(reg,
		gauge("delaybridge_build_info", "1; which program this is, and which bridge.", prometheus.Labels{
			"version": version(), "goversion": runtime.Version(), "bridge": c.bridge.ID, "store": c.store,
		}, func() float64 { return 1 }),
		gauge("delaybridge_start_time_seconds", "When this bridge was started, in Unix time.", nil, startTime(time.Now())),
	)
}

func startTime(at time.Time) func() float64 {
	return func() float64 { return float64(at.UnixMilli()) / 1e3 }
}
