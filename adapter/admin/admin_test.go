package admin_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/redisdelay"
)

// stores runs a test over each kind of store.
func stores(t *testing.T, f func(*testing.T, *rig)) {
	t.Run("memory", func(t *testing.T) { f(t, newRig(t)) })
	t.Run("redis", func(t *testing.T) {
		s, err := redisdelay.Open(t.Context(), redisdelay.Options{URL: testredis.Start(t).URL(), BridgeID: "b1", LookEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		f(t, newRig(t, withStore(s)))
	})
	t.Run("failover", func(t *testing.T) {
		s, _ := openFailover(t, testredis.Start(t), "b1")
		f(t, newRig(t, withStore(s)))
	})
}

func TestGet(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		r.put("orders.x", "p1")
		r.lease("orders.x", "r1")
		r.end(job.Bury, "orders.y", "d1")
		r.end(job.Complete, "orders.y", "e1")
		for id, want := range map[string]api.Job{
			"p1": {Target: "orders.x", State: job.Pending, MaxAttempts: 3, Bytes: 4},
			"r1": {Target: "orders.x", State: job.Running, MaxAttempts: 3, Bytes: 4, Attempt: 1, Owner: "b9/w1"},
			"d1": {Target: "orders.y", State: job.Dead, MaxAttempts: 3, Bytes: 4, Attempt: 1, Reason: "max_attempts"},
			"e1": {Target: "orders.y", State: job.Done, Attempt: 1},
		} {
			got := must[api.Job](r, "get", fmt.Sprintf(`{"id":%q}`, id))
			if (got.Expires == api.Time{}) != (id == "e1") || got.Due.IsZero() || got.Next.IsZero() {
				t.Errorf("%s: times of %+v", id, got)
			}
			if id == "p1" && got.Due != got.Next {
				t.Errorf("due %v, next attempt %v", got.Due, got.Next)
			}
			want.ID, want.Due, want.Next, want.Expires, want.Stored = api.ID(id), got.Due, got.Next, got.Expires, got.Stored
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		r.refuses("get", `{"id":"nobody"}`, job.ErrUnknown, "nobody")
	})
}

func TestChangesAreDefinite(t *testing.T) {
	running := api.Change{Result: job.ResultRunning, Attempt: 1, Owner: "b9/w1"}
	finished, unknown := api.Change{Result: job.ResultFinished}, api.Change{Result: job.ResultUnknown}
	done := api.Change{Result: job.ResultDone}
	stores(t, func(t *testing.T, r *rig) {
		r.put("orders.x", "p1", "p2", "p3")
		r.lease("orders.x", "r1")
		r.end(job.Complete, "orders.x", "e1")
		r.end(job.Bury, "orders.x", "d1", "d2")
		for _, verb := range []string{"cancel", "fire", "requeue"} {
			r.change(verb, "nobody", unknown)
			r.change(verb, "r1", running)
			got := r.ask(verb, `{"id":"e1"}`)
			if c := read[api.Change](t, got.body); c.Result != job.ResultFinished || got.code != 0 {
				t.Errorf("%s of a completed job: %+v", verb, c)
			}
		}
		if c := read[api.Change](t, r.ask("fire", `{"id":"d1"}`).body); c.Result != job.ResultFinished {
			t.Errorf("fire of a dead job: %+v", c)
		}
		r.change("requeue", "p1", finished)
		if got := r.change("cancel", "p1", done); !got.Due.IsZero() {
			t.Errorf("cancel answers with a due time: %+v", got)
		}
		if c := read[api.Change](t, r.ask("cancel", `{"id":"p1"}`).body); c.Result != job.ResultFinished {
			t.Errorf("cancel, repeated: %+v", c)
		}
		if c := read[api.Change](t, r.ask("cancel", `{"id":"d2"}`).body); c.Result != job.ResultDone {
			t.Errorf("cancel of a dead job: %+v", c)
		}
	})
}

func TestReschedule(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		r.put("orders.x", "p1")
		got := must[api.Change](r, "reschedule", `{"id":"p1","at":"2031-01-02T15:04:05.123456+01:00"}`)
		if want := "2031-01-02T14:04:05.123456Z"; got.Result != job.ResultDone || got.Due.Format(time.RFC3339Nano) != want {
			t.Errorf("%+v, want due %s", got, want)
		}
		if i := r.state("p1"); i.Due != job.At(got.Due.Time) {
			t.Errorf("the store has it due %v", i.Due.Time())
		}
		before := r.bridge.Now()
		got = must[api.Change](r, "reschedule", `{"id":"p1","in":"1.5h"}`)
		if due := job.At(got.Due.Time); due < before.Add(90*time.Minute) || due > r.bridge.Now().Add(90*time.Minute) {
			t.Errorf("in 1.5h: %v", got.Due)
		}
		r.refuses("reschedule", `{"id":"p1"}`, job.ErrSchedule, "in", "at")
		r.refuses("reschedule", `{"id":"p1","in":"1s","at":"20300101T000000Z"}`, job.ErrSchedule, "in", "at")
		r.refuses("reschedule", `{"id":"p1","in":"-1s"}`, job.ErrSchedule, "in", "negative")
		r.refuses("reschedule", `{"id":"p1","in":"20y"}`, job.ErrSchedule, "in")
		r.refuses("reschedule", `{"id":"p1","at":"tomorrow"}`, job.ErrSchedule, "at")
		r.refuses("reschedule", `{"id":"p1","in":"9999w"}`, job.ErrSchedule)
		r.refuses("reschedule", `{"in":"1s"}`, job.ErrHeader, "id")
		if i := r.state("p1"); i.Due != job.At(got.Due.Time) {
			t.Errorf("a refused call moved the job to %v", i.Due.Time())
		}
	})
}

// TestFireAndRequeueDeliver: the bridge delivers at once what it had not looked at
// for an hour.
func TestFireAndRequeueDeliver(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		sub, err := r.nc.SubscribeSync("orders.>")
		if err != nil {
			t.Fatal(err)
		}
		r.end(job.Bury, "orders.x", "d1")
		r.put("orders.x", "p1")
		for verb, id := range map[string]string{"fire": "p1", "requeue": "d1"} {
			if got := r.change(verb, id, api.Change{Result: job.ResultDone, Attempt: r.state(id).Attempt}); got.Due.IsZero() {
				t.Errorf("%s does not say when it is due", verb)
			}
			m, err := sub.NextMsg(patient)
			if err != nil {
				t.Fatalf("%s %s: %v", verb, id, err)
			}
			if got := m.Header.Get("Delay-Job-Id"); got != id {
				t.Errorf("%s delivered %q, want %q", verb, got, id)
			}
			if err := m.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestFireIsAtOnce: the bridge need not find it by itself, which takes it up to a
// second each time.
func TestFireIsAtOnce(t *testing.T) {
	r := newRig(t)
	sub, err := r.nc.SubscribeSync("orders.>")
	if err != nil {
		t.Fatal(err)
	}
	ids := numbered("p", 6)
	r.put("orders.x", ids...)
	start := time.Now()
	for _, id := range ids {
		r.change("fire", id, api.Change{Result: job.ResultDone})
		m, err := sub.NextMsg(patient)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("6 jobs, one after the other, took %v", took)
	}
}

func TestIDsOfAnyBytes(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", 255)
	for _, id := range []string{"\xff\x00.. ", "ä<&>\u2028\"", long} {
		r.put("orders.x", id)
		body, err := json.Marshal(api.ByID{ID: api.ID(id)})
		if err != nil {
			t.Fatal(err)
		}
		if got := must[api.Job](r, "get", string(body)); string(got.ID) != id {
			t.Errorf("%q: %q", id, got.ID)
		}
	}
	if jobs := must[api.Page](r, "list", "").Jobs; len(jobs) != 3 || string(jobs[0].ID) == "" {
		t.Errorf("%+v", jobs)
	}
}

func TestBadBodies(t *testing.T) {
	r := newRig(t)
	r.put("orders.x", "p1")
	for _, c := range []struct {
		verb, body string
		want       *job.Error
		words      string
	}{
		{"get", ``, job.ErrHeader, "id"},
		{"get", `{}`, job.ErrHeader, "id"},
		{"get", `{"id":""}`, job.ErrHeader, "id"},
		{"get", `{"id":null}`, job.ErrHeader, "id"},
		{"get", `{"id":7}`, job.ErrHeader, "id text base64"},
		{"get", `{"id":{"base64":"!"}}`, job.ErrHeader, "id base64"},
		{"get", `{"id":{"base64":"QQ==","x":1}}`, job.ErrHeader, "id base64"},
		{"get", `{"id":"` + strings.Repeat("x", 256) + `"}`, job.ErrHeader, "id 256 255"},
		{"get", `{"ID":"p1"}`, job.ErrHeader, "ID id"},
		{"get", `{"id":"p1","id":"p1"}`, job.ErrHeader, "id twice"},
		{"get", `{"id":"p1","state":"dead"}`, job.ErrHeader, "state id"},
		{"get", `{"id":"p1"} x`, job.ErrHeader, "object"},
		{"get", `{"id":"p1"}{}`, job.ErrHeader, "object"},
		{"get", `{"id":"p1"`, job.ErrHeader, "JSON"},
		{"get", `{"id":"p1",}`, job.ErrHeader, "JSON"},
		{"get", `{"id" "p1"}`, job.ErrHeader, "JSON"},
		{"get", `["p1"]`, job.ErrHeader, "object"},
		{"get", `"p1"`, job.ErrHeader, "object"},
		{"get", `null`, job.ErrHeader, "object"},
		{"get", `p1`, job.ErrHeader, "object"},
		{"get", "{\"id\":\"\xff\"}", job.ErrHeader, "UTF-8 base64"},
		{"get", `{"id":"p1"` + strings.Repeat(" ", 64<<10) + `}`, job.ErrHeader, "bytes 65536"},
		{"get", `{"id":` + strings.Repeat("[", 20_000) + `}`, job.ErrHeader, "JSON"},
		{"list", `{"limit":0}`, job.ErrHeader, "limit 1000"},
		{"list", `{"limit":1001}`, job.ErrHeader, "limit 1000"},
		{"list", `{"limit":-1}`, job.ErrHeader, "limit"},
		{"list", `{"limit":"9"}`, job.ErrHeader, "limit number"},
		{"list", `{"limit":1.5}`, job.ErrHeader, "limit number"},
		{"list", `{"limit":99999999999999999999}`, job.ErrHeader, "limit number"},
		{"list", `{"cursor":"%"}`, job.ErrHeader, "cursor"},
		{"list", `{"cursor":"QQ"}`, job.ErrHeader, "cursor"},
		{"list", `{"state":"done"}`, job.ErrHeader, "state done pending running dead"},
		{"list", `{"state":"cancelled"}`, job.ErrHeader, "cancelled dead"},
		{"list", `{"state":""}`, job.ErrHeader, "state dead"},
		{"list", `{"stored":"redis"}`, job.ErrHeader, "stored local"},
		{"list", `{"target":"a..b"}`, job.ErrTarget, "target"},
		{"list", `{"target":"a.>.b"}`, job.ErrTarget, "target"},
		{"list", `{"order":1}`, job.ErrHeader, "order state target stored limit cursor"},
		{"purge", `{}`, job.ErrTarget, "target >"},
		{"purge", `{"target":""}`, job.ErrTarget, "target >"},
		{"purge", `{"target":"a b"}`, job.ErrTarget, "target"},
		{"pause", `{"target":"*.` + strings.Repeat("x", 254) + `"}`, job.ErrTarget, "target 256 255"},
		{"purge", `{"target":">","state":"running"}`, job.ErrHeader, "state pending dead"},
		{"pause", `{}`, job.ErrTarget, "target >"},
		{"resume", ``, job.ErrTarget, "target >"},
		{"pause", `{"target":"a.>.b"}`, job.ErrTarget, "target"},
		{"stats", `{"target":"orders.*"}`, job.ErrTarget, "target"},
		{"stats", `{"id":"x"}`, job.ErrHeader, "id target"},
		{"workers", `{"id":"x"}`, job.ErrHeader, "id none"},
		{"bridges", `{"id":"x"}`, job.ErrHeader, "id none"},
		{"config", `[]`, job.ErrHeader, "object"},
	} {
		r.refuses(c.verb, c.body, c.want, strings.Fields(c.words)...)
	}
	if i := r.state("p1"); i.State != job.Pending {
		t.Errorf("a refused call left the job %s", i.State)
	}
}

func TestPurge(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 600 {
			ids = append(ids, fmt.Sprint("many", i))
		}
		r.put("bulk.x", ids...)
		r.put("orders.x", "p1", "p2")
		r.end(job.Bury, "orders.x", "d1")
		r.end(job.Bury, "orders.y.z", "d2")
		r.lease("orders.x", "r1")
		if got := must[api.Purged](r, "purge", `{"target":"orders.*"}`); got != (api.Purged{Purged: 1}) {
			t.Errorf("dead ones of a pattern: %+v", got)
		}
		if got := must[api.Purged](r, "purge", `{"target":"bulk.x","state":"pending"}`); got != (api.Purged{Purged: 600}) {
			t.Errorf("pending ones of a target: %+v", got)
		}
		if got := must[api.Purged](r, "purge", `{"target":">","state":"pending"}`); got != (api.Purged{Purged: 2}) {
			t.Errorf("all pending: %+v", got)
		}
		for id, want := range map[string]job.State{"d2": job.Dead, "r1": job.Running, "p1": job.Cancelled, "d1": job.Cancelled} {
			if got := r.state(id).State; got != want {
				t.Errorf("%s is %q, want %q", id, got, want)
			}
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	r := newRig(t)
	for _, step := range []struct {
		call, body string
		want       []string
	}{
		{"pause", `{"target":"orders.x"}`, []string{"orders.x"}},
		{"pause", `{"target":"bills.>"}`, []string{"bills.>", "orders.x"}},
		{"pause.bills.y", ``, []string{"bills.>", "bills.y"}}, // what it may know
		{"resume.bills.y", `{"target":"bills.y"}`, []string{"bills.>"}},
		{"resume", `{"target":">"}`, []string{}},
	} {
		if got := must[api.PauseState](r, step.call, step.body); !slices.Equal(got.Paused, step.want) || got.Paused == nil {
			t.Errorf("%s %s: %+v, want %v", step.call, step.body, got, step.want)
		}
	}
}

func TestStats(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		r.put("orders.x", "p1", "p2")
		r.put("bills.x", "p3")
		r.lease("orders.x", "r1")
		r.end(job.Bury, "orders.x", "d1")
		got := must[api.StatsAnswer](r, "stats", "")
		if got.Jobs != (job.Counts{Pending: 3, Running: 1, Dead: 1}) || !got.Counted || got.Bridge != "b1" || got.Version != "v1.2.3" ||
			got.Mode != r.bridge.Mode() || got.Started.IsZero() || got.Due != must[api.Job](r, "get", `{"id":"p1"}`).Due {
			t.Errorf("%+v", got)
		}
		got = must[api.StatsAnswer](r, "stats.bills.x", "")
		if got.Jobs != (job.Counts{Pending: 1}) || !got.Counted || got.Due != must[api.Job](r, "get", `{"id":"p3"}`).Due {
			t.Errorf("of a target: %+v", got)
		}
	})
}

func TestWorkersBridgesConfig(t *testing.T) {
	r := newRig(t, withAdmin(func(o *admin.Options) { o.Config = func() map[string]string { return map[string]string{"id": "b1"} } }))
	if got := r.ask("workers", ""); string(got.body) != `{"bridge":"b1","workers":[]}` {
		t.Errorf("workers: %s", got.body)
	}
	if got := must[api.BridgesAnswer](r, "bridges", "{}"); len(got.Bridges) != 1 || got.Bridges[0].ID != "b1" {
		t.Errorf("bridges: %+v", got)
	}
	if got := must[api.ConfigAnswer](r, "config", " "); got.Bridge != "b1" || got.Config["id"] != "b1" {
		t.Errorf("config: %+v", got)
	}
	for _, verb := range []string{"workers", "bridges", "config"} {
		if _, err := r.nc.Request("delay.api."+verb+".orders", nil, patient); err == nil {
			t.Errorf("%s has a target form", verb)
		}
	}
}

func TestMicroService(t *testing.T) {
	r := newRig(t)
	ask := func(verb micro.Verb) []byte {
		subject, err := micro.ControlSubject(verb, api.Service, "")
		if err != nil {
			t.Fatal(err)
		}
		m, err := r.nc.Request(subject, nil, patient)
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	if p := read[micro.Ping](t, ask(micro.PingVerb)); p.Name != "delaybridge" || p.Version != "1.2.3" || p.Metadata["bridge"] != "b1" {
		t.Errorf("ping: %+v", p)
	}
	info := read[micro.Info](t, ask(micro.InfoVerb))
	if len(info.Endpoints) != 13+10 {
		t.Errorf("%d endpoints", len(info.Endpoints))
	}
	for _, e := range info.Endpoints {
		name, target := strings.CutSuffix(e.Name, "-target")
		want := "delay.api." + name
		if target {
			want += ".>"
		}
		if e.Subject != want || e.QueueGroup != micro.DefaultQueueGroup {
			t.Errorf("%+v, want subject %s", e, want)
		}
		for _, k := range []string{"request_schema", "response_schema"} {
			if s := read[map[string]any](t, []byte(e.Metadata[k])); s["type"] != "object" || s["properties"] == nil && name != "workers" && name != "bridges" && name != "config" {
				t.Errorf("%s of %s: %v", k, e.Name, s)
			}
		}
	}
	r.ask("get", `{"id":"x"}`)
	r.ask("bridges", ``)
	eventually(t, func() error { // it counts after it has answered
		for _, e := range read[micro.Stats](t, ask(micro.StatsVerb)).Endpoints {
			want := map[string][2]int{"get": {1, 1}, "bridges": {1, 0}}[e.Name]
			if got := [2]int{e.NumRequests, e.NumErrors}; got != want {
				return fmt.Errorf("%s: requests and errors %v, want %v", e.Name, got, want)
			}
		}
		return nil
	})
}

// TestServeWithLeastOptions: what is left out has a default.
func TestServeWithLeastOptions(t *testing.T) {
	r := newRig(t)
	r.service.Stop()
	s, err := admin.Serve(connect(t, r.srv, adapter.ConnOptions()...), admin.Options{Bridge: r.bridge, Store: r.store, Prefix: "delay"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	r.put("orders.x", "p1")
	r.change("cancel", "p1", api.Change{Result: job.ResultDone})
	if got := must[api.ConfigAnswer](r, "config", ""); got.Bridge != "b1" || len(got.Config) != 0 {
		t.Errorf("config: %+v", got)
	}
}
