package main

import (
	"fmt"
	"time"
)

// workerKeys say when a worker that sends heartbeats counts as dead, and how
// long Redis shows people what it owns.
var workerKeys = []*key{
	{name: "workers.ttl", def: "6s", unit: "duration",
		help: "how long a worker counts as alive after its last heartbeat; three beats of the library", set: duration(func(c *config) *time.Duration { return &c.bridge.WorkerTTL })},
	{name: "workers.ping", def: "300ms", unit: "duration",
		help: "how often a worker that holds jobs is asked whether it is still connected; less than workers.ttl", set: duration(func(c *config) *time.Duration { return &c.bridge.WorkerPing })},
	{name: "workers.task_ttl", def: "120s", unit: "duration",
		help: "how long Redis shows which jobs a worker owns after its last heartbeat; for people, it decides nothing", set: duration(func(c *config) *time.Duration { return &c.taskTTL })},
	{name: "workers.heartbeat_ttl", def: "30s", unit: "duration",
		help: "how long Redis shows a worker as alive after its last heartbeat; for people, it decides nothing", set: duration(func(c *config) *time.Duration { return &c.heartbeatTTL })},
}

// maxShownTTL bounds what Redis shows.
const maxShownTTL = 7 * 24 * time.Hour

// checkWorkers checks what the bridge's own configuration does not. A zero
// could not be read, which is reported already.
func (c *config) checkWorkers() (errs []error) {
	if b := &c.bridge; b.WorkerTTL != 0 && b.WorkerPing >= b.WorkerTTL {
		errs = append(errs, fmt.Errorf("workers.ping: %v is not less than workers.ttl, %v", b.WorkerPing, b.WorkerTTL))
	}
	between := func(name string, v time.Duration) {
		if v != 0 && (v < time.Second || v > maxShownTTL) {
			errs = append(errs, fmt.Errorf("%s: %v is not between %v and %v", name, v, time.Second, maxShownTTL))
		}
	}
	between("workers.task_ttl", c.taskTTL)
	between("workers.heartbeat_ttl", c.heartbeatTTL)
	return errs
}
