package redisdelay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // it reports every failed dial, and here many are meant to fail
	goleak.VerifyTestMain(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// opened counts stores, so that each has a bridge id of its own.
var opened atomic.Int32

// open returns a store for url, closed when the test ends.
func open(t testing.TB, url string, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{
		URL: url, BridgeID: fmt.Sprintf("b%d", opened.Add(1)), Prefix: "test",
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, c := range change {
		c(&o)
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// raw is a plain client of the server.
func raw(t testing.TB, server *testredis.Server) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func flush(t testing.TB, c *redis.Client) {
	t.Helper()
	if err := c.FlushDB(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			flush(t, client)
			return open(t, server.URL())
		},
		Peer: func(t *testing.T, s job.Store) job.Store {
			return open(t, server.URL())
		},
		Stored: job.StoredRedis,
	}.Run(t)
}

func TestOpenRefuses(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	open(t, server.URL())
	cases := []struct {
		name   string
		change func(o *Options)
		set    []any // a command before, undone by the next one's
		want   string
	}{
		{"another shard count", func(o *Options) { o.Shards = 4 }, nil, "set the number of shards to 8"},
		{"a newer format", func(o *Options) { o.Prefix = "newer" }, []any{"hset", "newer:format", "version", 2}, "use a newer release"},
		{"no bridge id", func(o *Options) { o.BridgeID = "" }, nil, "no bridge id"},
		{"a bridge id with spaces", func(o *Options) { o.BridgeID = "a b" }, nil, "without spaces"},
		{"a bad prefix", func(o *Options) { o.Prefix = "{x}" }, nil, "without braces"},
		{"too many shards", func(o *Options) { o.Shards = 5000 }, nil, "1 to 4096"},
		{"no URL", func(o *Options) { o.URL = "" }, nil, "no Redis given"},
		{"a bad URL", func(o *Options) { o.URL = "http://x" }, nil, "use redis://"},
		{"eviction", nil, []any{"config", "set", "maxmemory-policy", "allkeys-lru"}, "set it to noeviction"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.set != nil {
				if err := client.Do(ctx, c.set...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			o := Options{URL: server.URL(), BridgeID: "refused", Prefix: "test"}
			if c.change != nil {
				c.change(&o)
			}
			s, err := Open(ctx, o)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestOpenUnreachable(t *testing.T) {
	server := testredis.Start(t)
	server.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := Open(ctx, Options{URL: server.URL(), BridgeID: "b"}); err == nil || !strings.Contains(err.Error(), "cannot reach Redis") {
		t.Errorf("Open without a server: %v", err)
	}
}

func TestCheckReports(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	s := open(t, server.URL())
	r, err := s.Check(ctx)
	if err != nil || !strings.HasPrefix(r.Version, "7.") || r.Role != "master" || !r.AppendOnly || r.AppendFsync != "everysec" ||
		r.MaxMemoryPolicy != "noeviction" || r.UsedMemory == 0 || len(r.Warnings) != 0 {
		t.Errorf("Check: %+v, %v", r, err)
	}
	client.ConfigSet(ctx, "appendonly", "no")
	if r, err = s.Check(ctx); err != nil || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "appendonly is off") {
		t.Errorf("Check without an append-only file: %+v, %v", r.Warnings, err)
	}
	if _, err := assess(parseInfo("redis_version:6.2.14\r\n")); err == nil || !strings.Contains(err.Error(), "7.0 or later") {
		t.Errorf("Redis 6.2 was accepted: %v", err)
	}
	if r, _ := assess(parseInfo("redis_version:7.0.0\r\naof_enabled:1\r\n")); len(r.Warnings) != 1 {
		t.Errorf("an unknown eviction policy gives warnings %q", r.Warnings)
	}
}

// TestOutOfMemory: at maxmemory nothing more is taken in, but what is there
// can be worked off.
func TestOutOfMemory(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	s := open(t, server.URL())
	jobs := benchJobs(10, generatedID)
	if _, err := s.Put(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	client.ConfigSet(ctx, "maxmemory", "1mb")
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.Put(soon, benchJobs(1, generatedID)); !Refused(err) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Put at maxmemory: %v, want OOM", err)
	}
	now := job.At(time.Now())
	c, err := s.Claim(ctx, job.ClaimRequest{Now: now, Until: now, Max: 100, Owner: "b"})
	if err != nil || len(c.Deliveries) != 10 {
		t.Fatalf("Claim at maxmemory: %d deliveries, %v", len(c.Deliveries), err)
	}
	res, err := s.Settle(ctx, now, []job.Settlement{{Ref: c.Deliveries[0].Ref()}})
	if err != nil || res[0] != job.Settled {
		t.Errorf("Settle at maxmemory: %v, %v", res, err)
	}
}

func TestSameBridgeIDTwice(t *testing.T) {
	server := testredis.Start(t)
	ctx := context.Background()
	id := func(o *Options) { o.BridgeID, o.Shards = "same", 1 }
	first, second := open(t, server.URL(), id), open(t, server.URL(), id)
	if _, err := second.Put(ctx, benchJobs(1, generatedID)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Put(ctx, benchJobs(1, generatedID)); !errors.Is(err, errStale) || !strings.Contains(err.Error(), `"same"`) {
		t.Errorf("Put under a bridge id that another process uses: %v", err)
	}
}

// TestNumbersRise: a restart whose clock is behind must not be refused.
func TestNumbersRise(t *testing.T) {
	server := testredis.Start(t)
	ctx := context.Background()
	id := func(o *Options) { o.BridgeID, o.Shards = "same", 1 }
	first := open(t, server.URL(), id)
	first.number.Add(int64(time.Hour / time.Microsecond))
	if _, err := first.Put(ctx, benchJobs(1, generatedID)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, server.URL(), id).Put(ctx, benchJobs(1, generatedID)); err != nil {
		t.Errorf("Put after a restart: %v", err)
	}
}

// TestMemory keeps the price of a pending job in check.
func TestMemory(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	cases := []struct {
		name  string
		id    func(i int) string
		limit int64
	}{
		{"generated id", generatedID, 560},
		{"36-character id", func(i int) string { return fmt.Sprintf("%08d-0000-4000-8000-%012d", i, i) }, 590},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			flush(t, client)
			s := open(t, server.URL())
			const n = 100_000
			before := usedMemory(t, s)
			if _, err := s.Put(context.Background(), benchJobs(n, c.id)); err != nil {
				t.Fatal(err)
			}
			per := (usedMemory(t, s) - before) / n
			t.Logf("%d bytes a job", per)
			if per > c.limit {
				t.Errorf("a pending job costs %d bytes of Redis, want at most %d", per, c.limit)
			}
		})
	}
}

func usedMemory(t *testing.T, s *Store) int64 {
	t.Helper()
	r, err := s.Check(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return r.UsedMemory
}

// TestPrune prunes many dead jobs in steps, the young ones left.
func TestPrune(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL(), func(o *Options) { o.Shards = 2 })
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	const old, young = 700, 5
	var jobs []job.Job
	for i := range old + young {
		jobs = append(jobs, l.job(fmt.Sprintf("job%03d", i), "orders.new", 0))
	}
	l.put(jobs...)
	for i, d := range l.claim(0, "") {
		at := l.t0
		if i >= old {
			at = l.t0.Add(time.Second)
		}
		if _, err := s.Settle(context.Background(), at, []job.Settlement{{Ref: d.Ref(), Outcome: job.Bury}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{10, 600, old - 610, 0} {
		limit := []int{10, 600, 600, 600}[i]
		if n, err := s.Prune(context.Background(), l.t0, limit); err != nil || n != want {
			t.Errorf("step %d removed %d jobs, %v, want %d", i, n, err, want)
		}
	}
	page, err := s.List(context.Background(), job.Query{State: job.Dead, Limit: 100})
	if err != nil || len(page.Jobs) != young || len(dump(t, raw(t, server))["test:{0}:own"].(map[string]string)) > young {
		t.Errorf("%d dead jobs left, %v, want %d", len(page.Jobs), err, young)
	}
}

// TestNewestCompletionsAreRecognised completes many jobs with generated ids,
// more than are remembered, in batches with and without what the caller knows.
func TestNewestCompletionsAreRecognised(t *testing.T) {
	server := testredis.Start(t)
	const limit, batches, size = 40, 10, 20
	s := open(t, server.URL(), func(o *Options) { o.Shards, o.DoneGeneratedCap = 1, limit })
	l := &life{t: t, s: s, t0: job.At(time.Now())}
	var all []job.Settlement
	for i := range batches {
		jobs := make([]job.Job, size)
		for k := range jobs {
			jobs[k] = l.job("", "orders.new", 0)
		}
		l.put(jobs...)
		var batch []job.Settlement
		for _, d := range l.claim(0, "") {
			st := job.Settlement{Ref: d.Ref()}
			if i%2 == 0 {
				st.Target, st.Due = d.Target, d.Due
			}
			batch = append(batch, st)
		}
		l.settle(batch...)
		all = append(all, batch...)
	}
	results, err := s.Settle(context.Background(), l.t0, all)
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for i, r := range results {
		if i >= len(all)-limit && r != job.Repeated {
			t.Errorf("completion %d of %d sent again: %v, want %v", i, len(all), r, job.Repeated)
		}
		if r == job.Repeated {
			known++
		}
	}
	if known > 2*limit {
		t.Errorf("%d completions are remembered, want at most %d", known, 2*limit)
	}
	for _, st := range all[len(all)-2*size:] {
		infos, err := s.Get(context.Background(), []string{st.ID})
		if err != nil || infos[0].State != job.Done || infos[0].Target != "orders.new" || infos[0].Due != l.t0 {
			t.Fatalf("a completed job is %+v, %v", infos[0], err)
		}
	}
}
