package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
)

// managed starts a bridge and returns a client of it, with the jobs given, all due
// in an hour.
func managed(t *testing.T, jobs ...client.Job) (*client.Client, *nats.Conn) {
	t.Helper()
	srv := testnats.Start(t)
	startBridge(t, srv)
	nc := connect(t, srv)
	c := newClient(t, nc, client.Options{Prefix: "later"})
	for _, j := range jobs {
		if _, err := c.Schedule(context.Background(), j, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	return c, nc
}

func TestGet(t *testing.T) {
	c, _ := managed(t, client.Job{ID: "a", Target: "orders.x", Payload: []byte("hello")}, client.Job{ID: "\xff\x01", Target: "orders.x"})
	j, err := c.Get(context.Background(), "a")
	if err != nil || j.ID != "a" || j.Target != "orders.x" || j.State != job.Pending || j.Bytes != 5 || time.Until(j.Due.Time) < 59*time.Minute {
		t.Errorf("%+v, %v", j, err)
	}
	if j, err := c.Get(context.Background(), "\xff\x01"); err != nil || j.ID != "\xff\x01" {
		t.Errorf("an id that is no text: %+v, %v", j, err)
	}
	if _, err := c.Get(context.Background(), "b"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
}

func TestChangesAreDefinite(t *testing.T) {
	c, nc := managed(t, client.Job{ID: "a", Target: "orders.x"}, client.Job{ID: "b", Target: "orders.x"})
	ctx := context.Background()
	sub, err := nc.QueueSubscribeSync("orders.x", "workers")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(2 * time.Hour).Truncate(time.Microsecond)
	if a, err := c.RescheduleAt(ctx, "a", at); err != nil || a.Result != job.ResultDone || !a.Due.Equal(at) {
		t.Errorf("rescheduled: %+v, %v", a, err)
	}
	if a, err := c.Reschedule(ctx, "a", 90*time.Minute); err != nil || a.Result != job.ResultDone || !a.Due.Before(at) {
		t.Errorf("rescheduled: %+v, %v", a, err)
	}
	if a, err := c.Fire(ctx, "a"); err != nil || a.Result != job.ResultDone {
		t.Errorf("fired: %+v, %v", a, err)
	}
	m, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(context.Context, string) (api.Change, error){"cancel": c.Cancel, "fire": c.Fire} {
		if a, err := f(ctx, "a"); err != nil || a.Result != job.ResultRunning || a.Attempt != 1 || a.Owner != "test" {
			t.Errorf("%s of a running job: %+v, %v", name, a, err)
		}
		if a, err := f(ctx, "nope"); err != nil || a.Result != job.ResultUnknown || a.ID != "nope" {
			t.Errorf("%s of no job: %+v, %v", name, a, err)
		}
	}
	if _, err := nc.Request(m.Reply, []byte("+TERM broken"), patience); err != nil {
		t.Fatal(err)
	}
	dead, err := c.Get(ctx, "a")
	if err != nil || dead.State != job.Dead || dead.Reason != "terminated: broken" {
		t.Errorf("%+v, %v", dead, err)
	}
	if a, err := c.Requeue(ctx, "a"); err != nil || a.Result != job.ResultDone {
		t.Errorf("requeued: %+v, %v", a, err)
	}
	if m, err = sub.NextMsg(patience); err != nil || m.Header.Get("Delay-Attempt") != "2" {
		t.Errorf("requeued: %v, %v", m, err)
	} else if _, err := nc.Request(m.Reply, nil, patience); err != nil {
		t.Error(err)
	}
	if a, err := c.PurgeJob(ctx, "b", job.Dead); err != nil || a.Result != job.ResultFinished {
		t.Errorf("purge of a pending job: %+v, %v", a, err)
	}
	for i, want := range []job.Result{job.ResultDone, job.ResultFinished} {
		if a, err := c.Cancel(ctx, "b"); err != nil || a.Result != want {
			t.Errorf("cancel %d: %+v, %v; want %s", i, a, err, want)
		}
	}
}

func TestListPages(t *testing.T) {
	c, _ := managed(t)
	var items []client.Item
	for i := range 1203 {
		items = append(items, client.Item{Job: client.Job{ID: fmt.Sprintf("j%04d", i), Target: fmt.Sprintf("t%d.x", i%3)}, In: time.Hour + time.Duration(i)*time.Second})
	}
	if _, err := c.ScheduleMany(context.Background(), items); err != nil {
		t.Fatal(err)
	}
	list := func(f client.Filter) (ids []string) {
		t.Helper()
		for j, err := range c.List(context.Background(), f) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, string(j.ID))
		}
		return ids
	}
	if ids := list(client.Filter{}); len(ids) != 1203 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != 1203 {
		t.Errorf("%d jobs, want each of 1203 once, in order", len(ids))
	}
	for n, f := range map[int]client.Filter{
		401: {Target: "t1.>"}, 700: {Limit: 700}, 7: {Target: "t2.x", Limit: 7}, 0: {State: job.Dead}, 1203: {Local: true},
	} {
		if ids := list(f); len(ids) != n {
			t.Errorf("%+v: %d jobs, want %d", f, len(ids), n)
		}
	}
	for range c.List(context.Background(), client.Filter{}) {
		break // no further page is asked for, and nothing hangs
	}
	for j, err := range c.List(context.Background(), client.Filter{State: "odd"}) {
		if !errors.Is(err, client.ErrHeader) {
			t.Errorf("odd state: %v, %v", j, err)
		}
	}
	if n, err := c.Purge(context.Background(), "t1.>", job.Pending); n != 401 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
}

func TestOperate(t *testing.T) {
	c, _ := managed(t, client.Job{ID: "a", Target: "orders.x"})
	ctx := context.Background()
	if p, err := c.Pause(ctx, "orders.>"); err != nil || !slices.Equal(p, []string{"orders.>"}) {
		t.Errorf("paused %v, %v", p, err)
	}
	if a, err := c.Stats(ctx); err != nil || a.Bridge != "test" || a.Jobs.Pending != 1 || len(a.Paused) != 1 {
		t.Errorf("stats %+v, %v", a, err)
	}
	if p, err := c.Resume(ctx, "orders.>"); err != nil || len(p) != 0 {
		t.Errorf("paused %v, %v", p, err)
	}
	if a, err := c.Bridges(ctx); err != nil || len(a.Bridges) != 1 {
		t.Errorf("bridges %+v, %v", a, err)
	}
	if a, err := c.Workers(ctx); err != nil || len(a.Workers) != 0 {
		t.Errorf("workers %+v, %v", a, err)
	}
	if a, err := c.Config(ctx); err != nil || a.Config["prefix"] != "later" {
		t.Errorf("config %+v, %v", a, err)
	}
}

func TestForTarget(t *testing.T) {
	all, _ := managed(t, client.Job{ID: "mine", Target: "orders.x"}, client.Job{ID: "other", Target: "billing.x"})
	c, err := all.ForTarget("orders.x")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if j, err := c.Get(ctx, "mine"); err != nil || j.Target != "orders.x" {
		t.Errorf("%+v, %v", j, err)
	}
	if _, err := c.Get(ctx, "other"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a job of another target: %v", err)
	}
	if a, err := c.Cancel(ctx, "other"); err != nil || a.Result != job.ResultUnknown {
		t.Errorf("a job of another target: %+v, %v", a, err)
	}
	n := 0
	for j, err := range c.List(ctx, client.Filter{}) {
		if n++; err != nil || j.ID != "mine" {
			t.Errorf("%+v, %v", j, err)
		}
	}
	if n != 1 {
		t.Errorf("%d jobs", n)
	}
	if _, err := c.Bridges(ctx); err != nil { // which concerns no target
		t.Error(err)
	}
	if _, err := all.ForTarget("orders.*"); !errors.Is(err, client.ErrTarget) {
		t.Errorf("a pattern: %v", err)
	}
}

func TestAnswersOfOtherServices(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv)
	c := newClient(t, nc, client.Options{})
	answer := func(verb, code, body string) {
		t.Helper()
		_, err := nc.Subscribe("delay.api."+verb, func(m *nats.Msg) {
			r := nats.NewMsg(m.Reply)
			if r.Data = []byte(body); code != "" {
				r.Header.Set("Nats-Service-Error-Code", code)
				r.Header.Set("Nats-Service-Error", "too busy")
			}
			_ = nc.PublishMsg(r)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	answer("get", "503", "")
	answer("cancel", "429", `{"error":{"code":429,"err_code":20429,"description":"slow down"}}`)
	answer("stats", "", "hello")
	answer("workers", "x", "")
	var e *client.Error
	if _, err := c.Get(context.Background(), "a"); !errors.As(err, &e) || e.Code != 503 || e.Description != "too busy" {
		t.Errorf("error in the headers alone: %v", err)
	}
	if _, err := c.Cancel(context.Background(), "a"); !errors.Is(err, client.ErrFull) {
		t.Errorf("error in the body: %v", err)
	}
	if _, err := c.Stats(context.Background()); err == nil {
		t.Error("an answer that is no JSON is taken")
	}
	if _, err := c.Workers(context.Background()); !errors.As(err, &e) {
		t.Errorf("odd code: %v", err)
	}
	if _, err := c.Bridges(context.Background()); !errors.Is(err, client.ErrNoBridge) {
		t.Errorf("nobody: %v", err)
	}
}
