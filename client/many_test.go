package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/internal/testnats"
)

func items(n int, target string) (out []client.Item) {
	for i := range n {
		out = append(out, client.Item{Job: client.Job{ID: fmt.Sprint("j", i), Target: target}, In: time.Hour})
	}
	return out
}

func TestScheduleMany(t *testing.T) {
	c, _ := managed(t)
	at := time.Now().Add(2 * time.Hour).Truncate(time.Microsecond)
	list := items(10_000, "orders.x")
	list[10].ID = list[9].ID
	list[11].Target = "orders.*"
	list[12].At = at
	list[13].Header = nats.Header{"Delay-Bogus": {"1"}}
	results, err := c.ScheduleMany(context.Background(), list)
	if !errors.Is(err, client.ErrTarget) || !strings.Contains(err.Error(), "2 of 10000 jobs not scheduled, the first of them item 11") {
		t.Errorf("error %v", err)
	}
	for i, r := range results {
		switch i {
		case 10:
			if r.Err != nil || !r.Receipt.Duplicate {
				t.Errorf("the same id again: %+v", r)
			}
		case 11:
			if !errors.Is(r.Err, client.ErrTarget) {
				t.Errorf("bad target: %+v", r)
			}
		case 13:
			if !errors.Is(r.Err, client.ErrHeader) {
				t.Errorf("bad header: %+v", r)
			}
		default:
			if r.Err != nil || r.Receipt.ID != list[i].ID || r.Receipt.Duplicate || i == 12 && !r.Receipt.Due.Equal(at) {
				t.Fatalf("item %d: %+v", i, r)
			}
		}
	}
	if a, err := c.Stats(context.Background()); err != nil || a.Jobs.Pending != 9_997 {
		t.Errorf("stats %+v, %v", a.Jobs, err)
	}
	if r, err := c.ScheduleMany(context.Background(), nil); len(r) != 0 || err != nil {
		t.Errorf("nothing: %v, %v", r, err)
	}
}

func TestScheduleManyWithoutBridge(t *testing.T) {
	srv := testnats.Start(t)
	c := newClient(t, connect(t, srv), client.Options{})
	results, err := c.ScheduleMany(context.Background(), items(5000, "orders.x"))
	if !errors.Is(err, client.ErrNoBridge) || len(results) != 5000 || !errors.Is(results[4999].Err, client.ErrNoBridge) {
		t.Errorf("%v", err)
	}
}

// TestScheduleManyUnanswered: what is answered counts, the rest fails when no answer
// has come for the timeout, or with the context.
func TestScheduleManyUnanswered(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv)
	c := newClient(t, nc, client.Options{Timeout: 50 * time.Millisecond})
	var asked atomic.Int64
	if _, err := nc.Subscribe("delay.to.odd", func(m *nats.Msg) {
		if asked.Add(1)%2 == 1 {
			_ = m.Respond([]byte(`{"stream":"DELAY","id":"a","seq":1}`))
		}
	}); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	for _, name := range []string{"idle", "deadline"} {
		asked.Store(0)
		var cancel context.CancelFunc
		if ctx, cancel = context.WithCancel(context.Background()); name == "deadline" {
			ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
		}
		defer cancel()
		results, err := c.ScheduleMany(ctx, items(9, "odd"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "4 of 9 jobs") {
			t.Errorf("%s: %v", name, err)
		}
		for i, r := range results {
			if odd := i%2 == 1; odd != (r.Err != nil) {
				t.Errorf("%s: item %d: %+v", name, i, r)
			}
		}
	}
	if results, err := c.ScheduleMany(ctx, items(9, "odd")); !errors.Is(err, context.DeadlineExceeded) || len(results) != 9 || results[8].Err == nil {
		t.Errorf("a context that has ended: %v", err)
	}
}

// TestScheduleManyOnClosedConnection: nothing is waited for that cannot come.
func TestScheduleManyOnClosedConnection(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv)
	if _, err := connect(t, srv).Subscribe("delay.to.x", func(*nats.Msg) { nc.Close() }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := newClient(t, nc, client.Options{}).ScheduleMany(ctx, items(3, "x"))
	if !errors.Is(err, nats.ErrConnectionClosed) || len(results) != 3 || results[0].Err == nil {
		t.Errorf("%v, %v", results, err)
	}
}

// BenchmarkSchedule compares one call per job with one call for many, on a bridge in
// this process.
func BenchmarkSchedule(b *testing.B) {
	srv := testnats.Start(b)
	startBridge(b, srv)
	c := newClient(b, connect(b, srv), client.Options{Prefix: "later"})
	payload := make([]byte, 256)
	const most = 10_000
	clean := func(b *testing.B) {
		b.StopTimer()
		if _, err := c.Purge(context.Background(), ">", "pending"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.Run("one by one", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := c.Schedule(context.Background(), client.Job{Target: "x", Payload: payload}, time.Hour); err != nil {
				b.Fatal(err)
			}
			if i%most == most-1 {
				clean(b)
			}
		}
		clean(b)
	})
	b.Run("many", func(b *testing.B) {
		for left := b.N; left > 0; left -= most {
			list := make([]client.Item, min(left, most))
			for i := range list {
				list[i] = client.Item{Job: client.Job{Target: "x", Payload: payload}, In: time.Hour}
			}
			if _, err := c.ScheduleMany(context.Background(), list); err != nil {
				b.Fatal(err)
			}
			clean(b)
		}
	})
}
