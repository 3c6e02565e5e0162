package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// TestTargetForm: who may ask about one target learns and changes nothing of others.
func TestTargetForm(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		r.put("orders.x", "mine")
		r.put("orders.x.y", "below")
		r.put("bills.x", "other")
		r.end(job.Bury, "bills.x", "dead")
		r.lease("bills.x", "running")
		for _, id := range []string{"other", "below", "dead", "running", "nobody"} {
			body := fmt.Sprintf(`{"id":%q}`, id)
			a := r.ask("get.orders.x", body)
			if want := strings.ReplaceAll(string(r.ask("get.orders.x", `{"id":"nobody"}`).body), "nobody", id); a.code != 404 || string(a.body) != want {
				t.Errorf("get %s: %d %s, want %s", id, a.code, a.body, want)
			}
			for _, verb := range []string{"cancel.orders.x", "fire.orders.x", "requeue.orders.x"} {
				r.change(verb, id, api.Change{Result: job.ResultUnknown})
			}
			if a := r.ask("reschedule.orders.x", fmt.Sprintf(`{"id":%q,"in":"1s"}`, id)); a.code != 404 {
				t.Errorf("reschedule %s: %d %s", id, a.code, a.body)
			}
		}
		if got := r.ids("list.orders.x", ``); !slices.Equal(got, []string{"mine"}) {
			t.Errorf("list: %v", got)
		}
		for _, state := range []string{"pending", "dead"} {
			if got := must[api.Purged](r, "purge.bills.y", fmt.Sprintf(`{"state":%q}`, state)); got.Purged != 0 {
				t.Errorf("purge of a target without jobs: %+v", got)
			}
		}
		for verb, body := range map[string]string{"list": `{"target":">"}`, "purge": `{"target":"bills.x"}`, "pause": `{"target":"bills.x"}`, "resume": `{"target":">"}`, "stats": `{"target":"bills.x"}`} {
			r.refuses(verb+".orders.x", body, job.ErrTarget, "target", "orders.x")
		}
		for _, target := range []string{"delay.in", "$SYS.x", "_INBOX.x"} {
			r.refuses("get."+target, `{"id":"mine"}`, job.ErrTarget)
		}
		for id, want := range map[string]job.State{"other": job.Pending, "below": job.Pending, "dead": job.Dead, "running": job.Running} {
			if got := r.state(id).State; got != want {
				t.Errorf("%s is %s now", id, got)
			}
		}
		if got := must[api.Job](r, "get.orders.x", `{"id":"mine"}`); got.State != job.Pending {
			t.Errorf("%+v", got)
		}
		if got := must[api.Purged](r, "purge.orders.x", `{"state":"pending"}`); got.Purged != 1 {
			t.Errorf("purge: %+v", got)
		}
		if got := must[api.StatsAnswer](r, "stats.orders.x", ``); got.Jobs != (job.Counts{}) || got.Totals != (api.Totals{}) || got.Local != 0 {
			t.Errorf("stats: %+v", got)
		}
	})
}

func TestMutationsOff(t *testing.T) {
	var on atomic.Bool
	r := newRig(t, withAdmin(func(o *admin.Options) { o.Mutations = on.Load }))
	r.put("orders.x", "p1")
	for verb, body := range map[string]string{
		"cancel": `{"id":"p1"}`, "reschedule": `{"id":"p1","in":"1s"}`, "fire": `{"id":"p1"}`, "requeue": `{"id":"p1"}`,
		"purge": `{"target":">","state":"pending"}`, "pause": `{"target":">"}`, "resume": `{"target":">"}`,
	} {
		r.refuses(verb, body, job.ErrForbidden, "api.mutations", "b1")
		r.refuses(verb+".orders.x", body, job.ErrForbidden, "api.mutations")
	}
	for verb, body := range map[string]string{"get": `{"id":"p1"}`, "list": ``, "stats": ``, "workers": ``, "bridges": ``, "config": ``} {
		if a := r.ask(verb, body); a.code != 0 {
			t.Errorf("%s: %d %s", verb, a.code, a.text)
		}
	}
	if got := r.state("p1"); got.State != job.Pending || len(r.bridge.Paused()) != 0 {
		t.Errorf("the job is %s, paused %v", got.State, r.bridge.Paused())
	}
	on.Store(true)
	r.change("cancel", "p1", api.Change{Result: job.ResultDone})
}

// accounts is a server where operators come in from an account of their own.
const accounts = `
accounts {
	BRIDGE {
		users: [{user: bridge, password: p}]
		exports: [{service: "delay.api.>"}]
	}
	OPS {
		users: [{user: alice, password: p}]
		imports: [{service: {account: BRIDGE, subject: "delay.api.>"}, share: true}]
	}
}`

// TestWhoAsks: the log says what the server says of who called, and a client cannot
// make it say something else through an import.
func TestWhoAsks(t *testing.T) {
	r := newRig(t, withNATS(testnats.Config(accounts)), func(c *rigConfig) {
		c.own = []nats.Option{nats.UserInfo("bridge", "p")}
		c.user = []nats.Option{nats.UserInfo("alice", "p"), nats.Name("console")}
	})
	r.put("orders.x", "p1")
	m := nats.NewMsg("delay.api.cancel")
	m.Data = []byte(`{"id":"p1"}`)
	m.Header.Set("Nats-Request-Info", `{"acc":"BRIDGE","user":"root"}`)
	if _, err := r.nc.RequestMsg(m, patient); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		for _, want := range []string{`"verb":"cancel"`, `"id":"p1"`, `"result":"done"`, `"account":"OPS"`, `"user":"alice"`, `"connection":"console"`} {
			if !strings.Contains(r.log.String(), want) {
				return fmt.Errorf("%s is not in %s", want, r.log)
			}
		}
		return nil
	})
	for _, secret := range []string{"_INBOX", "_R_", "root"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("%s is in %s", secret, r.log)
		}
	}
}

// TestLogIsBounded: lines do not grow with calls about single jobs, but none about
// purge, pause and resume is left out.
func TestLogIsBounded(t *testing.T) {
	r := newRig(t)
	for range 300 {
		r.ask("cancel", `{"id":"nobody"}`)
	}
	for range 20 {
		r.ask("purge", `{"target":"orders.x"}`)
	}
	r.ask("get", `{"id":"nobody"}`)
	eventually(t, func() error {
		if n := strings.Count(r.log.String(), `"verb":"purge"`); n != 20 {
			return fmt.Errorf("%d lines about purges", n)
		}
		return nil
	})
	if n := strings.Count(r.log.String(), `"verb":"cancel"`); n < 1 || n > 40 {
		t.Errorf("%d lines about 300 cancels", n)
	}
	if strings.Contains(r.log.String(), `"verb":"get"`) {
		t.Errorf("reading is logged: %s", r.log)
	}
}

// TestReplySubjects: the service publishes nothing where its permissions would do
// what the caller may not.
func TestReplySubjects(t *testing.T) {
	r := newRig(t)
	r.put("orders.x", "p1")
	for _, reply := range []string{"delay.in.1s.orders.x", "$OTHER.x"} {
		sub, err := r.nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.nc.PublishRequest("delay.api.cancel", reply, []byte(`{"id":"p1"}`)); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if !strings.Contains(r.log.String(), reply) {
				return fmt.Errorf("%s is not in %s", reply, r.log)
			}
			return nil
		})
		if n, _, err := sub.Pending(); n != 0 || err != nil {
			t.Errorf("%d answers on %s, %v", n, reply, err)
		}
	}
	if got := r.state("p1").State; got != job.Pending {
		t.Errorf("the job is %s", got)
	}
	// No answer asked for: done all the same.
	if err := r.nc.Publish("delay.api.cancel", []byte(`{"id":"p1"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if got := r.state("p1").State; got != job.Cancelled {
			return fmt.Errorf("the job is %s", got)
		}
		return nil
	})
}

// slow is a store whose Get takes until it is let go.
type slow struct {
	job.Store
	asked chan struct{}
	let   chan struct{}
}

func (s *slow) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	if !strings.HasPrefix(ids[0], "slow") {
		return s.Store.Get(ctx, ids)
	}
	s.asked <- struct{}{}
	select {
	case <-s.let:
		return s.Store.Get(ctx, ids)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestSlowCalls: they hold up neither those behind them nor other verbs, and there
// is a limit to their number.
func TestSlowCalls(t *testing.T) {
	store := &slow{memdelay.New(memdelay.Options{}), make(chan struct{}, 1000), make(chan struct{})}
	r := newRig(t, withStore(store))
	r.put("orders.x", "p1", "slow1")
	var calls sync.WaitGroup
	var found atomic.Int64
	ask := func() {
		if m, err := r.nc.Request("delay.api.get", []byte(`{"id":"slow1"}`), patient); err == nil && strings.Contains(string(m.Data), "pending") {
			found.Add(1)
		}
	}
	calls.Go(ask)
	within(t, "the first slow call", store.asked)
	if got := must[api.Job](r, "get", `{"id":"p1"}`); got.State != job.Pending {
		t.Errorf("%+v", got)
	}
	for range 63 {
		calls.Go(ask)
	}
	for range 63 {
		within(t, "all slow calls", store.asked)
	}
	r.refuses("bridges", ``, job.ErrFull, "64")
	close(store.let)
	calls.Wait()
	if found.Load() != 64 {
		t.Errorf("%d of 64 slow calls were answered", found.Load())
	}
	if a := r.ask("bridges", ``); a.code != 0 {
		t.Errorf("afterwards: %d %s", a.code, a.text)
	}
}

// slowList is a store whose lists by target take until they are let go.
type slowList struct {
	job.Store
	asked chan struct{}
	let   chan struct{}
}

func (s *slowList) List(ctx context.Context, q job.Query) (job.Page, error) {
	if q.Target != "" {
		s.asked <- struct{}{}
		select {
		case <-s.let:
		case <-ctx.Done():
			return job.Page{}, ctx.Err()
		}
	}
	return s.Store.List(ctx, q)
}

// TestManyScans: who makes the store look at many jobs, again and again, leaves it time
// for other things, and leaves calls to others.
func TestManyScans(t *testing.T) {
	store := &slowList{memdelay.New(memdelay.Options{}), make(chan struct{}, 1000), make(chan struct{})}
	r := newRig(t, withStore(store), withAdmin(func(o *admin.Options) { o.Timeout = patient }))
	r.put("bills.x", "p1")
	answers := make(chan *nats.Msg, 100)
	sub, err := r.nc.ChanSubscribe("answers", answers)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	const most = 16
	for i := range most + 1 {
		verb := []string{"list", "purge", "stats"}[i%3]
		if err := r.nc.PublishRequest("delay.api."+verb+".orders.x", "answers", nil); err != nil {
			t.Fatal(err)
		}
	}
	if m := within(t, "the refusal of one", answers); m.Header.Get(micro.ErrorCodeHeader) != "429" {
		t.Errorf("%s is answered before the others", m.Data)
	}
	for range 2 {
		within(t, "the first calls", store.asked)
	}
	for _, verb := range []string{"purge.orders.x", "stats.orders.x", "list"} {
		r.refuses(verb, `{}`, job.ErrFull, "look at many jobs")
	}
	for verb, body := range map[string]string{"get": `{"id":"p1"}`, "stats": ``, "bridges": ``} {
		if a := r.ask(verb, body); a.code != 0 {
			t.Errorf("%s meanwhile: %d %s", verb, a.code, a.text)
		}
	}
	if n := len(store.asked); n != 0 {
		t.Errorf("%d more calls look at once", n)
	}
	close(store.let)
	for range most {
		if m := within(t, "all others", answers); m.Header.Get(micro.ErrorCodeHeader) != "" {
			t.Errorf("a call that waited is answered %s", m.Data)
		}
	}
}

// TestCallTimesOut: a store that does not answer makes the outcome unknown, not the
// job.
func TestCallTimesOut(t *testing.T) {
	store := &slow{memdelay.New(memdelay.Options{}), make(chan struct{}, 1), make(chan struct{})}
	r := newRig(t, withStore(store), withAdmin(func(o *admin.Options) { o.Timeout = 200 * time.Millisecond }))
	r.refuses("get", `{"id":"slow1"}`, job.ErrUnavailable, "200ms")
}

// TestStopWaitsForCalls: what has begun is answered.
func TestStopWaitsForCalls(t *testing.T) {
	store := &slow{memdelay.New(memdelay.Options{}), make(chan struct{}, 1), make(chan struct{})}
	r := newRig(t, withStore(store))
	r.put("orders.x", "slow1")
	answer := make(chan *nats.Msg, 1)
	sub, err := r.nc.ChanSubscribe("answers", answer)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := r.nc.PublishRequest("delay.api.get", "answers", []byte(`{"id":"slow1"}`)); err != nil {
		t.Fatal(err)
	}
	within(t, "the call", store.asked)
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.service.Stop() }()
	eventually(t, func() error {
		if _, err := r.nc.Request("delay.api.bridges", nil, time.Second); err != nats.ErrNoResponders {
			return fmt.Errorf("still there: %v", err)
		}
		return nil
	})
	close(store.let)
	m := within(t, "the answer", answer)
	var j api.Job
	if err := json.Unmarshal(m.Data, &j); err != nil || j.State != job.Pending || m.Header.Get(micro.ErrorCodeHeader) != "" {
		t.Errorf("%s, %v", m.Data, err)
	}
	within(t, "Stop", stopped)
}
