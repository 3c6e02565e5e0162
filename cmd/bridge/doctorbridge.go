package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/subjects"
)

// apiTimeout is how long the admin API is waited for.
const apiTimeout = 2 * time.Second

// lookAtStats asks the running bridges how they are.
func (d *doctor) lookAtStats(nc *nats.Conn) {
	var s api.StatsAnswer
	if err := d.ask(nc, api.Stats, &s); err != nil {
		d.info("bridge.api", "not known: "+err.Error(), fmt.Sprintf("start a bridge, or look at its api.enabled and at the permission to publish to %s", subjects.API(d.cfg.bridge.Prefix, api.Stats, "")))
		return
	}
	d.ok("bridge.api", fmt.Sprintf("%s answers, version %s", s.Bridge, s.Version))
	d.assessStats(&s)
	var b api.BridgesAnswer
	if err := d.ask(nc, api.Bridges, &b); err == nil {
		d.assessBridges(b.Bridges)
	}
}

func (d *doctor) ask(nc *nats.Conn, verb string, answer any) error {
	m, err := nc.Request(subjects.API(d.cfg.bridge.Prefix, verb, ""), nil, apiTimeout)
	if err != nil {
		return err
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return fmt.Errorf("refused: %s", text)
	}
	return json.Unmarshal(m.Data, answer)
}

func (d *doctor) assessStats(s *api.StatsAnswer) {
	if d.cfg.store == storeRedis && s.Mode != storeRedis {
		d.warn("bridge.mode", s.Bridge+" is in mode "+s.Mode, "jobs are held on its disk, where no other bridge reaches them",
			"see the checks of Redis; it goes back by itself, failover.dwell after Redis is well")
	} else {
		d.ok("bridge.mode", s.Mode)
	}
	if s.Jobs.Dead > 0 {
		d.warn("bridge.dead", count(int(s.Jobs.Dead), "dead job"), "these jobs did not run to their end; they are removed "+strings.Join(d.cfg.values["dead.max_age"].items, "")+" after their death",
			fmt.Sprintf("'%s dead ls' shows why; 'dead requeue' runs them again, 'dead purge' removes them", program))
	}
	if len(s.Paused) > 0 {
		d.warn("bridge.paused", strings.Join(s.Paused, ", "), "their jobs wait until somebody resumes them, and may expire", fmt.Sprintf("'%s resume %s'", program, s.Paused[0]))
	}
	var parked []string
	for _, p := range s.Parked {
		parked = append(parked, p.Target+" ("+p.Reason+")")
	}
	if len(parked) > 0 {
		d.warn("bridge.parked", strings.Join(parked[:min(len(parked), 5)], ", ")+more(len(parked)-5), "nobody takes their jobs, which may expire",
			"start their workers, or look at what workers subscribe to")
	}
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

func (d *doctor) assessBridges(all []api.Bridge) {
	var ids, open []string
	for _, b := range all {
		ids = append(ids, b.ID)
		if d.cfg.store == storeRedis && b.CircuitState != "CLOSED" {
			open = append(open, b.ID+" "+b.CircuitState)
		}
	}
	if len(open) > 0 {
		d.warn("bridge.peers", strings.Join(open, ", "), "these bridges do not use Redis at present", "see the checks of Redis, and their logs")
		return
	}
	d.ok("bridge.peers", strings.Join(ids, ", "))
}
