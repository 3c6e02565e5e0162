package client_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
)

// TestPurgeGoesOn: a bridge that has found nothing when its time is up is asked to go on
// where it stopped.
func TestPurgeGoesOn(t *testing.T) {
	nc := connect(t, testnats.Start(t))
	answers := map[string]api.Purged{"": {Cursor: "first"}, "first": {Purged: 2, Cursor: "second"}, "second": {Purged: 1}}
	if _, err := nc.Subscribe("later.api.purge", func(m *nats.Msg) {
		var r api.PurgeRequest
		if err := json.Unmarshal(m.Data, &r); err != nil || r.Target != "orders.>" || r.State != job.Dead {
			t.Errorf("asked %s, %v", m.Data, err)
		}
		data, _ := json.Marshal(answers[r.Cursor]) // cannot fail
		if err := m.Respond(data); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc, client.Options{Prefix: "later"})
	if n, err := c.Purge(context.Background(), "orders.>", job.Dead); n != 3 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
}
