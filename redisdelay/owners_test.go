package redisdelay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// shown reads the keys for people.
func shown(t testing.TB, c *redis.Client) map[string]string {
	t.Helper()
	ctx := context.Background()
	out := map[string]string{}
	for _, pattern := range []string{"test:worker:*", "test:task:*"} {
		for _, key := range c.Keys(ctx, pattern).Val() {
			if c.Type(ctx, key).Val() == "set" {
				members := c.SMembers(ctx, key).Val()
				slices.Sort(members)
				out[key] = fmt.Sprintf("%q", members)
			} else {
				out[key] = c.Get(ctx, key).Val()
			}
		}
	}
	return out
}

func TestWriteOwners(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	s := open(t, server.URL(), func(o *Options) { o.BridgeID = "bridge-1" })
	odd := "}{*\x00 :\xff"
	steps := []struct {
		name    string
		updates []job.OwnerUpdate
		want    map[string]string
	}{
		{"nothing", nil, nil},
		{
			"two workers", []job.OwnerUpdate{
				{Worker: "w1", Beat: true, Added: []string{"a", odd}, Kept: []string{"b"}},
				{Worker: "w2", Added: []string{"c"}},
			},
			map[string]string{
				"test:worker:{w1}:hb": "bridge-1", "test:worker:{w1}:task": fmt.Sprintf("%q", []string{"a", "b", odd}),
				"test:task:{a}:workerId": "w1", "test:task:{b}:workerId": "w1", "test:task:{" + odd + "}:workerId": "w1",
				"test:worker:{w2}:task": `["c"]`, "test:task:{c}:workerId": "w2",
			},
		},
		{
			"one goes from one worker to the other, some end", []job.OwnerUpdate{
				{Worker: "w2", Added: []string{"a"}, Beat: true},
				{Worker: "w1", Removed: []string{"a", odd, "never there"}},
			},
			map[string]string{
				"test:worker:{w1}:hb": "bridge-1", "test:worker:{w1}:task": `["b"]`, "test:task:{b}:workerId": "w1",
				"test:worker:{w2}:hb": "bridge-1", "test:worker:{w2}:task": `["a" "c"]`, "test:task:{c}:workerId": "w2", "test:task:{a}:workerId": "w2",
			},
		},
		{
			"a worker is gone, a job of it known to this bridge and one not, and one that another has", []job.OwnerUpdate{
				{Worker: "w1", Added: []string{"a"}},
				{Worker: "w2", Gone: true, Removed: []string{"unknown"}},
			},
			map[string]string{
				"test:worker:{w1}:hb": "bridge-1", "test:worker:{w1}:task": `["a" "b"]`, "test:task:{a}:workerId": "w1", "test:task:{b}:workerId": "w1",
			},
		},
		{"the last job ends", []job.OwnerUpdate{{Worker: "w1", Removed: []string{"a", "b"}}}, map[string]string{"test:worker:{w1}:hb": "bridge-1"}},
		{"the last worker goes", []job.OwnerUpdate{{Worker: "w1", Gone: true}, {Worker: "w3", Gone: true}}, nil},
	}
	for _, st := range steps {
		if err := s.WriteOwners(context.Background(), st.updates); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		if got := shown(t, client); !maps.Equal(got, st.want) {
			t.Errorf("%s: shown is\n%q, want\n%q", st.name, got, st.want)
		}
	}
}

// TestWriteOwnersGoneElsewhere: what another bridge has given to another worker
// since stays.
func TestWriteOwnersGoneElsewhere(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	one, other := open(t, server.URL()), open(t, server.URL())
	for _, err := range []error{
		one.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w1", Added: []string{"a", "b"}}}),
		other.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w2", Added: []string{"a"}}}),
		one.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w1", Gone: true}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"test:worker:{w2}:task": `["a"]`, "test:task:{a}:workerId": "w2"}
	if got := shown(t, client); !maps.Equal(got, want) {
		t.Errorf("shown is %q, want %q", got, want)
	}
}

// TestWriteOwnersTTL: every key ends by itself, and a heartbeat renews those of the
// worker and of its jobs.
func TestWriteOwnersTTL(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	s := open(t, server.URL(), func(o *Options) { o.TaskTTL, o.HeartbeatTTL = time.Hour, 10*time.Minute })
	write := func(u job.OwnerUpdate) {
		t.Helper()
		if err := s.WriteOwners(ctx, []job.OwnerUpdate{u}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(key string, ttl time.Duration) {
		t.Helper()
		if got := client.PTTL(ctx, key).Val(); got > ttl || got < ttl-time.Minute {
			t.Errorf("%s ends in %v, want %v", key, got, ttl)
		}
	}
	task, a, beat := "test:worker:{w}:task", "test:task:{a}:workerId", "test:worker:{w}:hb"
	write(job.OwnerUpdate{Worker: "w", Added: []string{"a"}})
	want(task, time.Hour)
	want(a, time.Hour)
	for _, u := range []job.OwnerUpdate{{Worker: "w", Beat: true, Kept: []string{"a"}}, {Worker: "w", Beat: true, Added: []string{"a"}}} {
		client.Expire(ctx, task, time.Minute)
		client.Expire(ctx, a, time.Minute)
		write(u)
		want(task, time.Hour)
		want(a, time.Hour)
		want(beat, 10*time.Minute)
	}
	client.Expire(ctx, task, time.Minute)
	client.Expire(ctx, beat, time.Minute)
	write(job.OwnerUpdate{Worker: "w", Beat: true})
	want(task, time.Hour)
	want(beat, 10*time.Minute)
	client.FlushDB(ctx)
	write(job.OwnerUpdate{Worker: "w", Beat: true, Kept: []string{"a"}})
	want(task, time.Hour)
	want(a, time.Hour)

	defaults := Options{BridgeID: "b", URL: "redis://x"}
	if err := defaults.withDefaults(); err != nil || defaults.TaskTTL != 2*time.Minute || defaults.HeartbeatTTL != 30*time.Second {
		t.Errorf("defaults %v and %v, %v", defaults.TaskTTL, defaults.HeartbeatTTL, err)
	}
}

// TestWriteOwnersMany writes more than goes out at once.
func TestWriteOwnersMany(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	s := open(t, server.URL())
	u := job.OwnerUpdate{Worker: "w", Beat: true}
	for i := range 3 * maxAddTasks {
		u.Added = append(u.Added, fmt.Sprint(i))
	}
	if err := s.WriteOwners(ctx, []job.OwnerUpdate{u}); err != nil {
		t.Fatal(err)
	}
	size, set := client.DBSize(ctx).Val(), client.SCard(ctx, "test:worker:{w}:task").Val()
	if err := s.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w", Gone: true}}); err != nil {
		t.Fatal(err)
	}
	if left := client.DBSize(ctx).Val(); set != int64(len(u.Added)) || size-left != int64(len(u.Added))+2 {
		t.Errorf("%d jobs in the set, %d keys, %d left, want %d jobs", set, size, left, len(u.Added))
	}
}

// TestWriteOwnersFails: a failure is told, and no later than the context ends.
func TestWriteOwnersFails(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	s := open(t, proxy.URL(), func(o *Options) { o.Timeout = time.Minute })
	for _, u := range []job.OwnerUpdate{{Worker: "w", Beat: true}, {Worker: "w", Gone: true}, {Worker: "w", Removed: []string{"a"}}} {
		proxy.Stall()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		start := time.Now()
		if err := s.WriteOwners(ctx, []job.OwnerUpdate{u}); err == nil || time.Since(start) > 10*time.Second {
			t.Errorf("%+v through a stalled connection: %v after %v", u, err, time.Since(start))
		}
		cancel()
		proxy.Resume()
	}
	server.Kill()
	if err := s.WriteOwners(context.Background(), []job.OwnerUpdate{{Worker: "w", Beat: true}}); err == nil {
		t.Error("no error without a server")
	}
}

// TestWriteOwnersCluster: in a cluster no command may name two keys, whose slots may
// be on two machines.
func TestWriteOwnersCluster(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	s := open(t, proxy.URL())
	var mu sync.Mutex
	seen := map[string]int{}
	proxy.Observe(func(args []string) {
		mu.Lock()
		defer mu.Unlock()
		keys := 0
		for _, a := range args {
			if strings.HasPrefix(a, "test:") {
				keys++
			}
		}
		seen[args[0]]++
		if keys != 1 {
			t.Errorf("%q names %d keys, want one", args, keys)
		}
	})
	for _, updates := range [][]job.OwnerUpdate{
		{{Worker: "w1", Beat: true, Added: []string{"a", "b", "c"}}, {Worker: "w2", Beat: true, Kept: []string{"d", "e"}}},
		{{Worker: "w1", Removed: []string{"a", "b"}}, {Worker: "w2", Gone: true}},
	} {
		if err := s.WriteOwners(context.Background(), updates); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{"set": 7, "eval": 2, "smembers": 1, "getrange": 2, "del": 6, "srem": 1}
	mu.Lock()
	defer mu.Unlock()
	if !maps.Equal(seen, want) {
		t.Errorf("commands %v, want %v", seen, want)
	}
}
