package redisdelay

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// oneByOne are the options of the fault tests: two shards, so that calls go out
// as pipelines, and little time to lose.
func oneByOne(o *Options) { o.Shards, o.Timeout = 2, 2*time.Second }

// TestRepliesLost drops the reply of every call of one script once, after Redis
// has run it, for each script: the outcome is that of a run without faults.
func TestRepliesLost(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	proxy := testproxy.Start(t, server.Addr())
	t0 := job.At(time.Now())
	run := func(t *testing.T) []string {
		flush(t, client)
		l := &life{t: t, s: open(t, proxy.URL(), oneByOne), t0: t0}
		l.live()
		return l.log
	}
	want := run(t)
	for _, sc := range allScripts {
		t.Run(sc.name, func(t *testing.T) {
			proxy.DropReplies(1_000_000, firstTime(sc))
			got := run(t)
			dropped := proxy.Dropped()
			proxy.DropReplies(0, nil)
			if dropped == 0 {
				t.Error("no reply was dropped")
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("with %d lost replies:\n%s\nwithout:\n%s", dropped, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// firstTime matches each call of a script the first time it is sent.
func firstTime(sc *script) testproxy.Match {
	seen := map[string]bool{}
	return func(args []string) bool {
		if len(args) < 3 || args[1] != sc.sha {
			return false
		}
		call := strings.Join(args[3:], " ")
		if argv := args[3+atoi(args[2]):]; len(argv) > argNumber && strings.Contains(argv[argField], ":") {
			call = args[3] + argv[argField] + argv[argNumber]
		}
		first := !seen[call]
		seen[call] = true
		return first
	}
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// recorder keeps the commands that ran each script.
type recorder struct {
	mu    sync.Mutex
	calls map[string][][]string // by name of the script
}

func (r *recorder) observe(args []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sc := range allScripts {
		if len(args) > 1 && args[1] == sc.sha {
			r.calls[sc.name] = append(r.calls[sc.name], args)
		}
	}
}

// TestLateOriginals sends every call of a life again when it is over: the last
// one of each kind on each shard is answered from what was saved, the others
// are refused, and nothing changes.
func TestLateOriginals(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	proxy := testproxy.Start(t, server.Addr())
	rec := &recorder{calls: map[string][][]string{}}
	proxy.Observe(rec.observe)
	l := &life{t: t, s: open(t, proxy.URL(), oneByOne), t0: job.At(time.Now())}
	l.live()
	proxy.Observe(nil)
	before := dump(t, client)
	for _, sc := range kindScripts {
		last := map[string]int{} // by meta key
		for i, args := range rec.calls[sc.name] {
			last[args[3]] = i
		}
		if len(rec.calls[sc.name]) < 2 {
			t.Errorf("%d calls of %s, want more", len(rec.calls[sc.name]), sc.name)
		}
		for i, args := range rec.calls[sc.name] {
			want := int64(statusStale)
			if last[args[3]] == i {
				want = statusDone
			}
			reply, err := client.Do(context.Background(), deadlineLater(args)...).Slice()
			if err != nil || reply[0] != want {
				t.Errorf("call %d of %s, repeated late: %v, %v, want status %d", i, sc.name, reply, err, want)
			}
		}
	}
	if after := dump(t, client); !reflect.DeepEqual(after, before) {
		t.Errorf("late repeats changed the data from\n%v\nto\n%v", before, after)
	}
}

// deadlineLater moves a recorded call's deadline, so that it is not refused for
// being late.
func deadlineLater(args []string) []any {
	out := make([]any, len(args))
	for i, a := range args {
		out[i] = a
	}
	out[3+atoi(args[2])+argDeadline] = time.Now().Add(time.Hour).UnixMicro()
	return out
}

// dump reads all keys.
func dump(t testing.TB, c *redis.Client) map[string]any {
	t.Helper()
	ctx := context.Background()
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for _, k := range keys {
		switch c.Type(ctx, k).Val() {
		case "hash":
			all[k] = c.HGetAll(ctx, k).Val()
		case "zset":
			all[k] = c.ZRangeWithScores(ctx, k, 0, -1).Val()
		case "set":
			members := c.SMembers(ctx, k).Val()
			slices.Sort(members)
			all[k] = members
		}
	}
	return all
}

// TestFrozenPastDeadline stops Redis, lets calls time out, and wakes it: what
// waited in its sockets must not be done.
func TestFrozenPastDeadline(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	s := open(t, server.URL(), oneByOne)
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	l.put(l.job("running", "orders.new", 0))
	running := l.claim(0, "")[0]
	if _, err := s.Merge(context.Background(), l.t0, nil); err != nil { // what earlier ones took is read once
		t.Fatal(err)
	}
	l.put(l.job("due", "orders.new", 0), l.job("later", "orders.new", time.Hour))
	before := dump(t, client)

	server.Freeze()
	var wg sync.WaitGroup
	for name, call := range l.writes(running.Ref()) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if err := call(ctx); err == nil {
				t.Errorf("%s succeeded while Redis was stopped", name)
			}
		})
	}
	wg.Wait()
	server.Thaw()
	// By the time Redis answers a later command it has run what waited.
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	if after := dump(t, client); !reflect.DeepEqual(after, before) {
		t.Errorf("calls were done after their deadline: before\n%v\nafter\n%v", before, after)
	}
	l.put(l.job("new", "orders.new", 0))
	if ds := l.claim(0, ""); len(ds) != 2 {
		t.Errorf("%d deliveries after the thaw, want 2", len(ds))
	}
	if off := time.Duration(s.clock.offset.Load()) * time.Microsecond; off.Abs() > 50*time.Millisecond {
		t.Errorf("the clock is off by %v after the thaw", off)
	}
}

// writes are calls of every kind that would change what a life keeps.
func (l *life) writes(running job.Ref) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Put": func(ctx context.Context) error {
			_, err := l.s.Put(ctx, []job.Job{l.job("new", "orders.new", 0), l.job("", "orders.new", 0)})
			return err
		},
		"Claim": func(ctx context.Context) error {
			_, err := l.s.Claim(ctx, job.ClaimRequest{Now: l.t0, Until: l.t0, Max: 10, Owner: "b"})
			return err
		},
		"Settle": func(ctx context.Context) error {
			_, err := l.s.Settle(ctx, l.t0, []job.Settlement{{Ref: running}})
			return err
		},
		"Cancel": func(ctx context.Context) error {
			_, err := l.s.Cancel(ctx, l.t0, job.ByIDs("later"))
			return err
		},
		"Merge": func(ctx context.Context) error {
			_, err := l.s.Merge(ctx, l.t0, []job.MergeItem{l.item("merged", job.Pending, 0), l.item("due", job.Done, 1)})
			return err
		},
		"Reschedule": func(ctx context.Context) error {
			_, err := l.s.Reschedule(ctx, []job.Reschedule{{ID: "later", Due: l.t0}})
			return err
		},
	}
}

// TestFrozenWithinDeadline: a caller that can wait gets its answer.
func TestFrozenWithinDeadline(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	s := open(t, proxy.URL(), func(o *Options) { o.Timeout = 250 * time.Millisecond })
	sent := make(chan struct{}, 100)
	proxy.Observe(func(args []string) {
		if len(args) > 1 && args[1] == ingestScript.sha {
			sent <- struct{}{}
		}
	})
	server.Freeze()
	done := make(chan error)
	go func() {
		_, err := s.Put(context.Background(), benchJobs(3, generatedID))
		done <- err
	}()
	<-sent
	server.Thaw()
	if err := <-done; err != nil {
		t.Error(err)
	}
	page, err := s.List(context.Background(), job.Query{Limit: 10})
	if err != nil || len(page.Jobs) != 3 {
		t.Errorf("%d jobs stored, %v, want 3", len(page.Jobs), err)
	}
}

// TestCutAndStalled: connections break or hang in mid-run.
func TestCutAndStalled(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	s := open(t, proxy.URL(), func(o *Options) { o.Timeout = 200 * time.Millisecond }) // enough to open
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	proxy.Cut()
	l.put(l.job("a", "orders.new", 0))
	proxy.Stall()
	ctx, cancel := context.WithTimeout(context.Background(), 450*time.Millisecond)
	defer cancel()
	if _, err := s.Put(ctx, []job.Job{l.job("b", "orders.new", 0)}); err == nil {
		t.Error("Put succeeded through a stalled connection")
	}
	proxy.Resume()
	l.put(l.job("c", "orders.new", 0))
	if infos, err := s.Get(context.Background(), []string{"a", "b", "c"}); err != nil || infos[0].State != job.Pending || infos[1].State != "" || infos[2].State != job.Pending {
		t.Errorf("%v, %v, want a and c pending, and no b", infos, err)
	}
}
