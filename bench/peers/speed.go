package main

import (
	"fmt"
	"io"
	"slices"
)

// target is one speed that the bridge promises.
type target struct {
	what     string
	scenario string
	conc     int // of scenario A, otherwise 0
	system   string
	metric   string
	// over is the system whose metric divides the system's, in the same
	// repetition of the same run; empty: the metric itself counts.
	over  string
	least bool // at least limit, otherwise at most
	limit float64
	worst bool // the worst repetition counts, otherwise the median
}

const (
	waiting   = "delaybridge:everysec+sync"
	pipelined = "delaybridge:everysec+async"
	chosenIDs = "delaybridge:everysec+async+ids"
	localWait = "delaybridge:local+sync" // fsynced before each acknowledgement
	localPipe = "delaybridge:local+async"
	requests  = "nats-rr"
	natsSync  = "nats:sync"
	natsAsync = "nats:async"
)

// targets are measured by speed.sh with 256 B payloads.
var targets = []target{
	{what: "intake, 64 waiting producers / NATS request-reply", scenario: "A", conc: 64, system: waiting, over: requests, metric: "jobs_s", least: true, limit: 0.65},
	{what: "intake, 64 waiting producers / NATS schedules", scenario: "A", conc: 64, system: waiting, over: natsSync, metric: "jobs_s", least: true, limit: 0.8},
	{what: "intake, 8 pipelined producers / NATS schedules", scenario: "A", conc: 8, system: pipelined, over: natsAsync, metric: "jobs_s", least: true, limit: 1.15},
	{what: "intake, 64 pipelined producers / NATS schedules", scenario: "A", conc: 64, system: pipelined, over: natsAsync, metric: "jobs_s", least: true, limit: 1.15},
	{what: "same, 8 producers that choose ids", scenario: "A", conc: 8, system: chosenIDs, over: natsAsync, metric: "jobs_s", least: true, limit: 0.95},
	{what: "same, 64 producers that choose ids", scenario: "A", conc: 64, system: chosenIDs, over: natsAsync, metric: "jobs_s", least: true, limit: 0.95},
	{what: "intake without Redis, fsynced, 64 waiting producers / NATS request-reply", scenario: "A", conc: 64, system: localWait, over: requests, metric: "jobs_s", least: true, limit: 0.6},
	{what: "intake without Redis, fsynced, 64 pipelined producers / NATS schedules (not synced)", scenario: "A", conc: 64, system: localPipe, over: natsAsync, metric: "jobs_s", least: true, limit: 1.3},
	{what: "all due at one instant, rate / NATS schedules", scenario: "B", system: pipelined, over: natsAsync, metric: "burst_jobs_s", least: true, limit: 1.6},
	{what: "the first of them after, ms (median)", scenario: "B", system: pipelined, metric: "first_ms", limit: 5},
	{what: "the first of them after, ms (worst)", scenario: "B", system: pipelined, metric: "first_ms", limit: 10, worst: true},
	{what: "1,000/s at random times, lateness p50, ms", scenario: "C", system: pipelined, metric: "late_p50_ms", limit: 0.5},
	{what: "1,000/s at random times, lateness p99, ms", scenario: "C", system: pipelined, metric: "late_p99_ms", limit: 3},
	{what: "1,000/s at random times, early", scenario: "C", system: pipelined, metric: "early", worst: true},
	{what: "1,000/s at random times, lost", scenario: "C", system: pipelined, metric: "lost", worst: true},
	{what: "1,000/s at random times, delivered twice", scenario: "C", system: pipelined, metric: "dup", worst: true},
	{what: "all due at one instant, early", scenario: "B", system: pipelined, metric: "early", worst: true},
	{what: "all due at one instant, lost", scenario: "B", system: pipelined, metric: "lost", worst: true},
	{what: "all due at one instant, delivered twice", scenario: "B", system: pipelined, metric: "dup", worst: true},
	{what: "CPU s per 100,000 jobs end to end, pipelined", scenario: "B", system: pipelined, metric: "cpu_100k", limit: 5},
	{what: "CPU s per 100,000 jobs end to end, waiting", scenario: "B", system: waiting, metric: "cpu_100k", limit: 8.5},
	{what: "bytes in Redis per pending job, generated id", scenario: "M", system: pipelined, metric: "used_B_job", limit: 560},
	{what: "bytes in Redis per pending job, 36-character id", scenario: "M", system: chosenIDs, metric: "used_B_job", limit: 590},
}

// measured are a target's figures, one per repetition, from best to worst.
type measured struct {
	values []float64
	noise  float64 // the highest of the results used
}

// measure collects t's figures out of all results.
func (t target) measure(all []Result) (m measured) {
	for _, r := range all {
		v, ok := t.value(r, t.system)
		if !ok {
			continue
		}
		noise := r.M["noise"]
		if t.over != "" {
			peer, ok := t.peer(all, r)
			if !ok {
				continue
			}
			base, _ := t.value(peer, t.over)
			v /= base
			noise = max(noise, peer.M["noise"])
		}
		m.values = append(m.values, v)
		m.noise = max(m.noise, noise)
	}
	slices.Sort(m.values)
	if t.least {
		slices.Reverse(m.values)
	}
	return m
}

// value is t's metric in r, if r is of t's scenario and the system, and valid:
// a burst is none when enqueuing went on beyond its due instant.
func (t target) value(r Result, system string) (float64, bool) {
	if r.System != system || r.Scenario != t.scenario || t.conc != 0 && r.Conc != t.conc || r.M["slack_s"] < 0 {
		return 0, false
	}
	v, ok := r.M[t.metric]
	return v, ok
}

// peer is the result that r is compared with: same run, same repetition.
func (t target) peer(all []Result, r Result) (Result, bool) {
	for _, p := range all {
		if v, ok := t.value(p, t.over); ok && v > 0 && p.Run == r.Run && p.Rep == r.Rep && p.N == r.N && p.Payload == r.Payload {
			return p, true
		}
	}
	return Result{}, false
}

// met judges the figures; no figures meet nothing.
func (t target) met(m measured) bool {
	if len(m.values) == 0 {
		return false
	}
	v := m.values[len(m.values)/2]
	if t.worst {
		v = m.values[len(m.values)-1]
	}
	if t.least {
		return v >= t.limit
	}
	return v <= t.limit
}

// printSpeed prints each target with what was measured, and returns how many
// are missed or not measured.
func printSpeed(w io.Writer, all []Result) (missed int) {
	fmt.Fprint(w, "| speed | target | median (best–worst) | runs | noise | |\n|---|---|---|---|---|---|\n")
	for _, t := range targets {
		m := t.measure(all)
		if !t.met(m) {
			missed++
		}
		fmt.Fprintf(w, "| %s | %s | %s | %d | %s | %s |\n", t.what, t.bound(), m, len(m.values), num(m.noise), t.verdict(m))
	}
	return missed
}

// noisy is the noise above which a figure should be measured again.
const noisy = 0.3

func (t target) verdict(m measured) string {
	v := "pass"
	switch {
	case len(m.values) == 0:
		return "not measured"
	case !t.met(m):
		v = "FALLS SHORT"
	}
	if m.noise > noisy {
		v += ", noisy"
	}
	return v
}

func (t target) bound() string {
	if t.least {
		return "≥ " + num(t.limit)
	}
	return "≤ " + num(t.limit)
}

func (m measured) String() string {
	n := len(m.values)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s–%s)", num(m.values[n/2]), num(m.values[0]), num(m.values[n-1]))
}
