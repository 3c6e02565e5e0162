package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

// TestAnswersAreShownWhole: what an answer leaves off is said, and what is missing is
// explained once.
func TestAnswersAreShownWhole(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("delay.api.workers", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"bridge":"one","workers":[{"worker":"w1"}],"left_off":1200}`))
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.SubscribeSync("delay.api.stats"); err != nil { // which does not answer
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"workers", "workers --json"} {
		step{args, 0, "w1", "1,200 more workers"}.run(t, srv.URL())
	}
	if r := (step{"watch --count 1 --timeout 100ms", 1, "no answer on delay.api.stats", ""}).run(t, srv.URL()); strings.Count(r.err, "--timeout waits longer") != 1 {
		t.Errorf("explained as %q", r.err)
	}
}
