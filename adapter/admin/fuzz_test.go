package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
)

// fuzzed are all subjects of the service, below delay.api.
var fuzzed = []string{
	api.Get, api.List, api.Cancel, api.Reschedule, api.Fire, api.Requeue, api.Purge, api.Pause, api.Resume, api.Stats, api.Workers, api.Bridges, api.Config,
	"get.orders.x", "list.orders.x", "cancel.orders.x", "reschedule.orders.x", "fire.orders.x", "requeue.orders.x", "purge.orders.x", "pause.orders.x", "resume.orders.x", "stats.orders.x",
}

// FuzzCalls: whatever is sent, to whichever endpoint, is answered with JSON; a
// refusal says why, and changes nothing.
func FuzzCalls(f *testing.F) {
	for i := range fuzzed {
		for _, body := range []string{``, `{}`, `{"id":"p1"}`, `{"target":"orders.x"}`} {
			f.Add(uint8(i), []byte(body))
		}
	}
	for _, body := range []string{
		`{"state":"dead","target":">","limit":3,"cursor":"AAAAAAAAAAA","stored":"local"}`, `{"id":"p1","in":"5m"}`, `{"id":{"base64":"cDE="},"at":"20300101T000000Z"}`,
		`{"target":"*.x","state":"pending"}`, "{\"id\":\"\xff\"}", `{"id":"\ud800"}`, `{"id":[[[[`, `{"limit":1e3}`, `[]`, `{} {}`, `{"id":"p1","id":"p2"}`, `{"a":`,
	} {
		f.Add(uint8(1), []byte(body))
		f.Add(uint8(3), []byte(body))
		f.Add(uint8(6), []byte(body))
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		r.fill()
		before := r.shown(t)
		verb := fuzzed[int(which)%len(fuzzed)]
		m, err := r.nc.Request("delay.api."+verb, body, patient)
		if err != nil {
			t.Fatalf("%s %q: %v", verb, body, err)
		}
		if !json.Valid(m.Data) {
			t.Fatalf("%s %q is answered %q", verb, body, m.Data)
		}
		code := m.Header.Get(micro.ErrorCodeHeader)
		if code == "" {
			return
		}
		var got api.Failure
		if err := json.Unmarshal(m.Data, &got); err != nil || got.Error == nil {
			var change api.Change
			if json.Unmarshal(m.Data, &change) != nil || change.Result != job.ResultUnknown || code != "404" {
				t.Fatalf("%s %q: code %s, answer %q", verb, body, code, m.Data)
			}
		} else if strconv.Itoa(got.Error.Code) != code || got.Error.Code/100 != 4 || got.Error.Description == "" {
			t.Fatalf("%s %q: code %s, failure %+v", verb, body, code, got.Error)
		}
		if after := r.shown(t); after != before {
			t.Fatalf("%s %q: refused with %s, and changed\n%s\nto\n%s", verb, body, code, before, after)
		}
	})
}

// fill puts the jobs that are not there.
func (r *rig) fill() {
	due := r.bridge.Now().Add(hour)
	for _, target := range []string{"orders.x", "bills.x"} {
		if _, err := r.store.Put(context.Background(), []job.Job{{ID: "p1" + target[:1], Target: target, Due: due}, {ID: target, Target: target, Due: due}}); err != nil {
			r.Fatal(err)
		}
	}
}

// shown is the state of all jobs and pauses.
func (r *rig) shown(t *testing.T) string {
	p, err := r.store.List(context.Background(), job.Query{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprint(r.bridge.Paused())
	for _, j := range p.Jobs {
		out += fmt.Sprintf(" %s:%s:%d", j.ID, j.State, j.Due)
	}
	return out
}
