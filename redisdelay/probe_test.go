package redisdelay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// TestProbeFails: a Redis that answers and takes no writes is not well.
func TestProbeFails(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	proxy := testproxy.Start(t, server.Addr())
	s := open(t, proxy.URL())
	ctx := context.Background()
	command := func(args ...any) func() {
		return func() {
			if err := client.Do(ctx, args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	refuse := func(text string) func() {
		return func() { proxy.Disturb(testproxy.Disturbance{Refuse: text}) }
	}
	for _, c := range []struct {
		want        string
		begin, heal func()
	}{
		{"OOM", command("config", "set", "maxmemory", "1mb"), command("config", "set", "maxmemory", "0")},
		{"NOREPLICAS", command("config", "set", "min-replicas-to-write", "1"), command("config", "set", "min-replicas-to-write", "0")},
		{"READONLY", command("replicaof", "127.0.0.1", "1"), command("replicaof", "no", "one")},
		{"LOADING", refuse("LOADING Redis is loading the dataset in memory"), refuse("")},
		{"MISCONF", refuse("MISCONF Redis is configured to save RDB snapshots"), refuse("")},
		{"CLUSTERDOWN", refuse("CLUSTERDOWN The cluster is down"), refuse("")},
		{"MASTERDOWN", refuse("MASTERDOWN Link with MASTER is down"), refuse("")},
	} {
		t.Run(c.want, func(t *testing.T) {
			c.begin()
			err := s.Probe(ctx)
			soon, cancel := context.WithTimeout(ctx, 120*time.Millisecond)
			defer cancel()
			_, putErr := s.Put(soon, benchJobs(1, generatedID))
			for name, err := range map[string]error{"Probe": err, "Put": putErr} {
				if !Refused(err) || Permanent(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want it refused with %s", name, err, c.want)
				}
			}
			c.heal()
			if err := s.Probe(ctx); err != nil {
				t.Errorf("Probe after the end: %v", err)
			}
		})
	}
}

// TestRefusedAtOnce: what Redis answers to the first thing that a new connection
// sends is the outcome of the calls that need the connection.
func TestRefusedAtOnce(t *testing.T) {
	proxy := testproxy.Start(t, testredis.Start(t).Addr())
	s := open(t, proxy.URL())
	proxy.Disturb(testproxy.Disturbance{Refuse: "LOADING Redis is loading the dataset in memory"})
	for name, call := range map[string]func(context.Context) error{
		"Probe":       s.Probe,
		"loadScripts": s.loadScripts,
		"Check":       func(ctx context.Context) error { _, err := s.Check(ctx); return err },
		"Put":         func(ctx context.Context) error { _, err := s.Put(ctx, benchJobs(100, generatedID)); return err },
	} {
		proxy.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := call(ctx); !Refused(err) || Permanent(err) || !strings.Contains(err.Error(), "LOADING") {
			t.Errorf("%s: %v, want it refused with LOADING", name, err)
		}
		cancel()
	}
}

// TestProbeIsAlone: a pool without a free connection hides nothing.
func TestProbeIsAlone(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	ctx := context.Background()
	ended := make(chan error, 16)
	for range cap(ended) {
		go func() { ended <- s.client.BLPop(ctx, 10*time.Second, "nothing").Err() }()
	}
	client := raw(t, server)
	for strings.Count(client.ClientList(ctx).Val(), "cmd=blpop") < cap(ended) {
		time.Sleep(time.Millisecond)
	}
	soon, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	defer stop()
	if err := s.Probe(soon); err != nil {
		t.Errorf("Probe beside a busy pool: %v", err)
	}
	for range cap(ended) {
		client.LPush(ctx, "nothing", "x")
		<-ended
	}
	ttl := client.TTL(context.Background(), canaryKey("test", s.opts.BridgeID)).Val()
	if ttl <= 0 || ttl > canaryTTL {
		t.Errorf("the canary lives for %v", ttl)
	}
}

// TestProbeWithoutInfo: an ACL may forbid INFO.
func TestProbeWithoutInfo(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	client := raw(t, server)
	ctx := context.Background()
	if err := client.Do(ctx, "acl", "setuser", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(ctx); err != nil {
		t.Errorf("Probe: %v", err)
	}
}

// TestOpenLater: opening a Redis that is away fails in a way that passes; one that
// asks for a password does not.
func TestOpenLater(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	o := Options{URL: proxy.URL(), BridgeID: "late", Prefix: "test"}
	try := func(name string, permanent bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		s, err := Open(ctx, o)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: Open succeeded", name)
		} else if Permanent(err) != permanent {
			t.Errorf("%s: permanent is %v, want %v: %v", name, !permanent, permanent, err)
		}
	}
	proxy.Disturb(testproxy.Disturbance{Refuse: "LOADING Redis is loading the dataset in memory"})
	try("loading", false)
	proxy.Disturb(testproxy.Disturbance{})
	server.Freeze()
	try("frozen", false)
	server.Thaw()
	client := raw(t, server)
	if err := client.ConfigSet(context.Background(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	try("no password", true)
	o.URL = "redis://:wrong@" + proxy.Addr() + "/0"
	try("wrong password", true)
	server.Kill()
	try("killed", false)
}

// distance is a hook that makes each round trip of a client longer, and counts them.
type distance struct {
	trip  time.Duration
	trips atomic.Int32
}

func (d *distance) travel() {
	d.trips.Add(1)
	time.Sleep(d.trip)
}

func (d *distance) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.travel()
		return next(ctx, network, addr)
	}
}

func (d *distance) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		d.travel()
		return next(ctx, cmd)
	}
}

func (d *distance) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		d.travel()
		return next(ctx, cmds)
	}
}

// TestOpenFarAway: the bridge gives the opening of Redis 2 s. So it may take only a
// few round trips, and fewer of those that measure the clock the longer they are.
func TestOpenFarAway(t *testing.T) {
	server := testredis.Start(t)
	for _, name := range []string{"new", "old"} {
		far := &distance{trip: 100 * time.Millisecond}
		open(t, server.URL(), func(o *Options) {
			o.Instrument = func(c redis.UniversalClient) error { c.AddHook(far); return nil }
		})
		if n := far.trips.Load(); n > 9 {
			t.Errorf("%s data: opened in %d round trips, want 9 at most", name, n)
		}
	}
}

// TestProbeIsShort: a probe is one round trip; on a new connection, three more.
func TestProbeIsShort(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	far := &distance{}
	s.prober.AddHook(far)
	for _, want := range []int32{4, 1} {
		far.trips.Store(0)
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := far.trips.Load(); n != want {
			t.Errorf("%d round trips, want %d", n, want)
		}
	}
}

// TestConnectionsAreNamed: those of the store, and that of its probes.
func TestConnectionsAreNamed(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, server.URL())
	if err := s.Probe(context.Background()); err != nil {
		t.Fatal(err)
	}
	if list := raw(t, server).ClientList(context.Background()).Val(); strings.Count(list, "name=delaybridge/"+s.opts.BridgeID+" ") != 2 {
		t.Errorf("not two connections have the name of the bridge:\n%s", list)
	}
}

// TestWithoutNames: Redis may refuse CLIENT, which is said once.
func TestWithoutNames(t *testing.T) {
	server := testredis.Start(t, "--rename-command", "CLIENT", "")
	var said strings.Builder
	s := open(t, server.URL(), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	for range 2 {
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(said.String(), "takes no names"); n != 1 {
		t.Errorf("said %d times:\n%s", n, &said)
	}
}

// TestUpcoming reads what is due in pages, with many jobs of one instant.
func TestUpcoming(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL(), oneByOne), t0: job.At(time.Now())}
	ctx := context.Background()
	const before, tied, after = 300, 700, 50
	var jobs []job.Job
	add := func(n int, at time.Duration) {
		for range n {
			jobs = append(jobs, l.job(fmt.Sprintf("job%04d", len(jobs)), "orders.new", at))
		}
	}
	add(before, time.Second)
	add(tied, 2*time.Second)
	add(after, 3*time.Second)
	add(10, time.Hour)
	l.put(jobs...)
	l.put(l.job("tried", "orders.new", 0), l.job("aside", "orders.new", 0))
	for _, d := range l.claim(0, "") {
		st := job.Settlement{Ref: d.Ref(), Outcome: job.Retry, At: l.t0.Add(4 * time.Second)}
		if d.ID == "aside" {
			st.Outcome, st.Target, st.Due, st.At = job.SetAside, d.Target, d.Due, l.t0.Add(time.Second)
		}
		l.settle(st)
	}
	until := l.t0.Add(time.Minute)

	got, complete, err := l.s.Upcoming(ctx, l.t0, until, 10_000)
	if l.must(err); len(got) != before+tied+after+1 || complete != until {
		t.Fatalf("%d jobs, complete to %v, want %d, to %v", len(got), complete.Sub(l.t0), before+tied+after+1, time.Minute)
	}
	seen := map[string]job.Info{}
	for _, i := range got {
		if _, twice := seen[i.ID]; twice || i.State != job.Pending || string(i.Payload) != string(l.get(i.ID).Payload) {
			t.Fatalf("%q is given twice, or as %+v", i.ID, i)
		}
		seen[i.ID] = i
	}
	if i := seen["tried"]; i.Attempt != 1 || i.Next != l.t0.Add(4*time.Second) || i.Due != l.t0 {
		t.Errorf("the job that was tried: %+v", i)
	}

	got, complete, err = l.s.Upcoming(ctx, l.t0, until, 500)
	if l.must(err); len(got) > 500 || complete != l.t0.Add(2*time.Second) {
		t.Errorf("%d jobs of at most 500, complete to %v, want 2s", len(got), complete.Sub(l.t0))
	}
	early := 0
	for _, i := range got {
		if i.Next < complete {
			early++
		}
	}
	if early != before {
		t.Errorf("%d jobs are due before that, want %d", early, before)
	}
	got, _, err = l.s.Upcoming(ctx, l.t0.Add(2500*time.Millisecond), until, 500)
	if l.must(err); len(got) != after+1 {
		t.Errorf("%d jobs from 2.5 s on, want %d", len(got), after+1)
	}
	if got, complete, err = l.s.Upcoming(ctx, l.t0, until, 0); err != nil || len(got) != 0 || complete != l.t0 {
		t.Errorf("with no room: %d jobs, complete to %v, %v", len(got), complete.Sub(l.t0), err)
	}
}

// TestJournalIsKept: the bridge that has a copy is part of what is stored.
func TestJournalIsKept(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL()), t0: job.At(time.Now())}
	j := l.job("a", "orders.new", 0)
	j.Journal = "bridge-1"
	l.put(j)
	if i := l.get("a"); i.Journal != j.Journal {
		t.Errorf("Get: journal %q", i.Journal)
	}
	if ds := l.claim(0, ""); len(ds) != 1 || ds[0].Journal != j.Journal {
		t.Errorf("Claim: %+v", ds)
	}
}
