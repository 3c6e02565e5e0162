package redisdelay

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// outage is a way in which Redis is away.
type outage struct {
	name        string
	begin, heal func(*testredis.Server, *testproxy.Proxy)
}

var outages = []outage{
	{
		"frozen",
		func(r *testredis.Server, _ *testproxy.Proxy) { r.Freeze() },
		func(r *testredis.Server, _ *testproxy.Proxy) { r.Thaw() },
	},
	{
		"killed",
		func(r *testredis.Server, _ *testproxy.Proxy) { r.Kill() },
		func(r *testredis.Server, _ *testproxy.Proxy) { r.Restart() },
	},
	{
		"silent",
		func(_ *testredis.Server, p *testproxy.Proxy) { p.Stall() },
		func(_ *testredis.Server, p *testproxy.Proxy) { p.Resume() },
	},
	{
		"commands lost",
		func(_ *testredis.Server, p *testproxy.Proxy) { p.Disturb(testproxy.Disturbance{LoseCommands: true}) },
		func(_ *testredis.Server, p *testproxy.Proxy) { p.Disturb(testproxy.Disturbance{}) },
	},
}

// TestPromptInOutages: calls of every kind, more than one of a kind too, return
// soon after their context has ended, and the first call after the outage is done
// at once. The clock stays where it is.
func TestPromptInOutages(t *testing.T) {
	const patience, slack = 100 * time.Millisecond, 200 * time.Millisecond
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			server := testredis.Start(t, synced...)
			proxy := testproxy.Start(t, server.Addr())
			url := proxy.URL()
			if o.name == "killed" {
				url = server.URL() // where connections are refused
			}
			s := open(t, url, func(o *Options) { o.LookEvery = -1 }) // so that each claim asks Redis
			l := &life{t: t, s: s, t0: job.At(time.Now())}
			l.put(l.job("running", "orders.new", 0))
			calls := l.writes(l.claim(0, "")[0].Ref())
			calls["Probe"], calls["second Put"] = s.Probe, calls["Put"]
			off := time.Until(s.Now())

			o.begin(server, proxy)
			failed := 0
			for range 3 { // more than the pool has connections
				failed += callAll(t, calls, patience, patience+slack)
			}
			if failed != 3*len(calls) {
				t.Errorf("%d of %d calls failed", failed, 3*len(calls))
			}
			o.heal(server, proxy)
			start := time.Now()
			for err := call250(calls["Put"]); err != nil; err = call250(calls["Put"]) {
				if time.Since(start) > 10*time.Second {
					t.Fatal(err)
				}
			}
			took := time.Since(start)
			t.Logf("first success %v after the end", took)
			if took > 700*time.Millisecond {
				t.Errorf("the first call succeeded %v after the end of the outage", took)
			}
			if moved := time.Until(s.Now()) - off; moved.Abs() > ignoredOffset {
				t.Errorf("the clock has moved by %v", moved)
			}
		})
	}
}

func call250(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	return f(ctx)
}

// callAll makes calls at once and returns how many failed.
func callAll(t *testing.T, calls map[string]func(context.Context) error, patience, limit time.Duration) int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for name, call := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			start := time.Now()
			err := call(ctx)
			if took := time.Since(start); took > limit {
				t.Errorf("%s took %v with a context of %v", name, took, patience)
			}
			if Permanent(err) {
				t.Errorf("%s: an outage is said to be permanent: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
			}
		})
	}
	wg.Wait()
	return failed
}

// losses collects what OnDataLoss reports.
type losses struct {
	mu  sync.Mutex
	why map[int][]string
}

func (l *losses) option(o *Options) {
	o.Shards = 2
	l.why = map[int][]string{}
	o.OnDataLoss = func(shard int, why string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.why[shard] = append(l.why[shard], why)
	}
}

func (l *losses) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.why {
		n += len(w)
	}
	return n
}

// TestOlderData restarts Redis with what it had some time before: each shard
// reports it once, whatever comes first afterwards.
func TestOlderData(t *testing.T) {
	ctx := context.Background()
	probe := func(l *life) error { return l.s.Probe(ctx) }
	firsts := map[string]func(l *life) error{
		"put": func(l *life) error {
			_, err := l.s.Put(ctx, []job.Job{l.job("a2", "orders.new", 0), l.job("b2", "orders.new", 0)})
			return err
		},
		"claim": func(l *life) error {
			_, err := l.s.Claim(ctx, job.ClaimRequest{Now: l.t0, Until: l.t0, Max: 10, Owner: "b"})
			return err
		},
		"get": func(l *life) error {
			_, err := l.s.Get(ctx, []string{"a"})
			return err
		},
		"probe": probe,
	}
	for name, first := range firsts {
		t.Run(name, func(t *testing.T) {
			server := testredis.Start(t, synced...)
			var lost losses
			l := &life{t: t, s: open(t, server.URL(), lost.option), t0: job.At(time.Now())}
			l.put(l.job("a", "orders.new", 0), l.job("b", "orders.new", 0))
			l.must(raw(t, server).ConfigSet(ctx, "appendonly", "no").Err())
			l.put(l.job("c", "orders.new", 0), l.job("d", "orders.new", 0))
			server.Restart()
			l.must(first(l))
			if n := lost.count(); n != 2 || len(lost.why) != 2 {
				t.Errorf("reported: %v, want each shard once", lost.why)
			}
			l.must(probe(l))
			l.put(l.job("e", "orders.new", 0), l.job("f", "orders.new", 0))
			l.claim(0, "")
			server.Restart()
			l.must(first(l))
			l.must(probe(l))
			if n := lost.count(); n != 2 {
				t.Errorf("reported again: %v", lost.why)
			}
		})
	}
}

// TestRestartedIsNoLoss: Redis that has all its data reports nothing.
func TestRestartedIsNoLoss(t *testing.T) {
	server := testredis.Start(t, synced...)
	var lost losses
	l := &life{t: t, s: open(t, server.URL(), lost.option), t0: job.At(time.Now())}
	l.live()
	server.Restart()
	l.must(l.s.Probe(context.Background()))
	l.live()
	if lost.count() != 0 {
		t.Errorf("reported: %v", lost.why)
	}
}

// TestReconnectAtMaxMemory: a new connection needs no write, so work goes on at
// maxmemory after a cut.
func TestReconnectAtMaxMemory(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	l := &life{t: t, s: open(t, proxy.URL()), t0: job.At(time.Now())}
	l.put(l.job("a", "orders.new", 0))
	l.must(raw(t, server).ConfigSet(context.Background(), "maxmemory", "1mb").Err())
	proxy.Cut()
	if ds := l.claim(0, ""); len(ds) != 1 {
		t.Errorf("%d jobs claimed, want 1", len(ds))
	}
}
