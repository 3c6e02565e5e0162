package redisdelay

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// TestScriptsFlushed forgets the scripts before every call.
func TestScriptsFlushed(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	s := open(t, server.URL())
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	forget := func() {
		if err := client.ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	l.put(l.job("a", "orders.new", 0))
	forget()
	ds := l.claim(0, "")
	forget()
	l.settle(job.Settlement{Ref: ds[0].Ref()})
	forget()
	l.look([]string{"a"})
	if infos, err := s.Get(context.Background(), []string{"a"}); err != nil || infos[0].State != job.Done {
		t.Errorf("%+v, %v, want a done", infos, err)
	}
}

// synced has Redis write what it confirms to its disk first: the default does so
// later when the disk is slow, and a killed one has lost that.
var synced = []string{"--appendfsync", "always"}

// TestRestarted kills Redis and starts it again with its data.
func TestRestarted(t *testing.T) {
	server := testredis.Start(t, synced...)
	changed := 0
	s := open(t, server.URL(), func(o *Options) { o.OnDataLoss = func(int, string) { changed++ } })
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	l.put(l.job("a", "orders.new", 0), l.job("b", "orders.new", time.Second))
	a := l.claim(0, "")
	server.Restart()
	l.settle(job.Settlement{Ref: a[0].Ref()})
	if b := l.claim(time.Second, ""); len(b) != 1 || b[0].ID != "b" {
		t.Errorf("claimed %v after the restart, want b", b)
	}
	if changed != 0 {
		t.Errorf("%d shards are said to have lost data", changed)
	}
}

// TestCameBackEmpty: Redis lost everything.
func TestCameBackEmpty(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	var mu sync.Mutex
	changed := map[int]bool{}
	s := open(t, server.URL(), func(o *Options) {
		o.Shards = 2
		o.OnDataLoss = func(shard int, why string) {
			mu.Lock()
			defer mu.Unlock()
			changed[shard] = strings.Contains(why, "began anew")
		}
	})
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	l.put(l.job("a", "orders.new", 0), l.job("b", "orders.new", 0))
	a := l.claim(0, "")[0]
	flush(t, client)
	ids := []string{"a", "b", "c", "d", "e", "f"} // some on each shard
	for _, id := range ids {
		l.put(l.job(id, "orders.new", 0))
	}
	if want := (map[int]bool{0: true, 1: true}); !reflect.DeepEqual(changed, want) {
		t.Errorf("shards said to have lost data: %v, want %v", changed, want)
	}
	res, err := s.Settle(context.Background(), l.t0, []job.Settlement{{Ref: a.Ref()}})
	if err != nil || res[0] != job.Stale {
		t.Errorf("settling a delivery from before: %v, %v, want stale", res, err)
	}
	if ds := l.claim(0, ""); len(ds) != len(ids) {
		t.Errorf("%d of %d new jobs delivered", len(ds), len(ids))
	}
	open(t, server.URL(), func(o *Options) { o.Shards = 2 }) // the format was written again
}

// TestLateRepliesCorrectTheClock: a script that arrives after its deadline by
// Redis' clock is sent again with a better one.
func TestLateRepliesCorrectTheClock(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	s.clock.offset.Store(-time.Hour.Microseconds())
	if _, err := s.Put(context.Background(), benchJobs(1, generatedID)); err != nil {
		t.Fatal(err)
	}
	if off := time.Duration(s.clock.offset.Load()) * time.Microsecond; off.Abs() > 50*time.Millisecond {
		t.Errorf("the clock is still off by %v", off)
	}
}

// TestCollision: a minted id that is taken is replaced by another.
func TestCollision(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL(), func(o *Options) { o.Shards = 1 })
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	ctx := context.Background()
	taken := []job.Job{l.job("", "orders.new", 0)}
	if _, err := s.Put(ctx, taken); err != nil {
		t.Fatal(err)
	}
	// The same id as if another store had minted it.
	jobs := []job.Job{l.job(taken[0].ID, "orders.new", 0), l.job("", "orders.new", 0)}
	jobs[0].Generated = true
	res, err := s.Put(ctx, jobs)
	if err != nil || res[0].Err != nil || res[0].Duplicate || jobs[0].ID == taken[0].ID || jobs[0].ID == jobs[1].ID {
		t.Errorf("Put of a taken id: %+v, %v, ids %q and %q", res, err, jobs[0].ID, jobs[1].ID)
	}
	if ds := l.claim(0, ""); len(ds) != 3 {
		t.Errorf("%d jobs of 3 delivered", len(ds))
	}
}

// TestLargeJobs passes the byte caps of every script.
func TestLargeJobs(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL(), func(o *Options) { o.Shards = 2 })
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	const n = 20
	jobs := make([]job.Job, n)
	for i := range jobs {
		jobs[i] = l.job(fmt.Sprintf("job%02d", i), "orders.new", 0)
		jobs[i].Payload = make([]byte, 300<<10)
		binary.BigEndian.PutUint64(jobs[i].Payload, uint64(i))
	}
	l.put(jobs...)
	page, err := s.List(context.Background(), job.Query{Limit: 100, Target: "orders.new"})
	if err != nil || page.Cursor == "" || len(page.Jobs) == 0 {
		t.Errorf("a page of %d jobs, cursor %q, %v: want a short one with a cursor", len(page.Jobs), page.Cursor, err)
	}
	ds := l.claim(0, "")
	if len(ds) != n {
		t.Fatalf("%d of %d jobs delivered", len(ds), n)
	}
	for i, d := range ds {
		if binary.BigEndian.Uint64(d.Payload) != uint64(i) {
			t.Errorf("%s has the payload of another", d.ID)
		}
	}
	var found []job.Delivery
	for len(found) < n {
		ds, _, err := s.Expired(context.Background(), l.t0.Add(time.Hour), n-len(found))
		if err != nil || len(ds) == 0 {
			t.Fatalf("Expired: %d deliveries, %v", len(ds), err)
		}
		for _, d := range ds {
			l.settle(job.Settlement{Ref: d.Ref()})
		}
		found = append(found, ds...)
	}
}

// TestKnown: what one process has confirmed, the next one misses.
func TestKnown(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	run := func(known []byte, change ...func(*Options)) (*Store, []string) {
		var lost []string
		all := append([]func(*Options){func(o *Options) {
			o.BridgeID, o.Known = "same", known
			o.OnDataLoss = func(_ int, why string) { lost = append(lost, why) }
		}}, change...)
		return open(t, server.URL(), all...), lost
	}
	s, lost := run(nil)
	if _, err := s.Put(ctx, benchJobs(8, generatedID)); err != nil || len(lost) > 0 {
		t.Fatal(err, lost)
	}
	known := s.Known()
	for _, c := range []struct {
		name   string
		known  []byte
		want   int
		change func()
	}{
		{"nothing lost", known, 0, func() {}},
		{"nothing known", nil, 0, func() {}},
		{"not readable", []byte("{"), len(s.keys), func() {}},
		{"older", known, 1, func() { // they were all put on one
			for _, keys := range s.keys {
				client.HDel(ctx, keys[metaKey], s.kinds[ingestKind].field)
			}
		}},
		{"another history", s.Known(), len(s.keys), func() {
			for _, keys := range s.keys {
				client.HSet(ctx, keys[metaKey], "epoch", "another")
			}
		}},
		{"empty", known, len(s.keys), func() { client.FlushAll(ctx) }},
	} {
		c.change()
		if _, lost := run(c.known); len(lost) != c.want {
			t.Errorf("%s: lost %d, want %d: %q", c.name, len(lost), c.want, lost)
		}
	}
	known = s.Known()
	if _, lost := run(known, func(o *Options) { o.BridgeID = "other" }); len(lost) != len(s.keys) {
		t.Errorf("another bridge id finds %q lost, want the epochs alone", lost)
	}
}

// TestProbeFindsLoss: data that goes without a connection breaking.
func TestProbeFindsLoss(t *testing.T) {
	server := testredis.Start(t)
	var lost []string
	s := open(t, server.URL(), func(o *Options) { o.OnDataLoss = func(_ int, why string) { lost = append(lost, why) } })
	ctx := context.Background()
	for _, want := range []int{0, 0} {
		if err := s.Probe(ctx); err != nil || len(lost) != want {
			t.Fatal(err, lost)
		}
	}
	raw(t, server).FlushAll(ctx)
	for range 2 { // it is told once
		if err := s.Probe(ctx); err != nil || len(lost) != len(s.keys) {
			t.Fatalf("%v; lost %q, want %d shards", err, lost, len(s.keys))
		}
	}
}
