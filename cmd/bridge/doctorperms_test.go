package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
)

// TestDoctorKnowsAllSubscriptions lets a bridge subscribe to nothing but what doctor
// looks for.
func TestDoctorKnowsAllSubscriptions(t *testing.T) {
	t.Parallel()
	d := newDoctor(t, "id", "one")
	var allow []string
	for _, p := range d.subscriptions() {
		if strings.HasPrefix(p.allow, "_INBOX.") || strings.HasPrefix(p.allow, "delay.api.") {
			p.subject = p.allow // some of these stand for all
		}
		allow = append(allow, fmt.Sprintf("%q", p.subject))
	}
	srv := testnats.Start(t, testnats.Config("authorization { users = [ { user: u, password: p, permissions: { subscribe: ["+strings.Join(allow, ", ")+"] } } ] }"))
	p := start(t, "serve", "--nats-url", srv.URL(), "--nats-user", "u", "--nats-password", "p", "--redis-url", testredis.Start(t).URL(), "--data-dir", t.TempDir(),
		"--id", "one", "--http-addr", "off", "--log-level", "debug")
	p.ready()
	p.signal(syscall.SIGTERM)
	p.exit(patience)
	if log := p.output(); strings.Contains(strings.ToLower(log), "permissions violation") || strings.Contains(log, "may not") {
		t.Errorf("the bridge asks for more:\n%s", log)
	}
}
