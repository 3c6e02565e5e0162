package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/redisdelay"
)

// worker is a plain queue subscriber.
func worker(t *testing.T, url, target string) (*nats.Conn, *nats.Subscription) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sub, err := nc.QueueSubscribeSync(target, "workers")
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return nc, sub
}

func receive(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatalf("no delivery: %v", err)
	}
	return m
}

func put(t *testing.T, url string, args ...string) {
	t.Helper()
	if r := run(t, append([]string{"put", "--nats-url", url}, args...)...); r.code != 0 {
		t.Fatalf("put %q: exit %d, %s", args, r.code, r.err)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServeDrainsOnSIGTERM(t *testing.T) {
	t.Parallel()
	srv, redis := testnats.Start(t), testredis.Start(t)
	args := []string{"serve", "--nats-url", srv.URL(), "--redis-url", redis.URL(), "--id", "one", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir()}
	first := start(t, args...)
	at := first.ready()
	if at["store"] != "redis" || at["redis"] != redis.Addr()+"/0" || at["id"] != "one" || at["prefix"] != "delay" || at["nats"] != srv.URL() {
		t.Errorf("ready line says %v", at)
	}
	if code, body := get(t, at["http"]+"/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	nc, sub := worker(t, srv.URL(), "orders.x")
	put(t, srv.URL(), "--id", "a", "--in", "50ms", "orders.x", "hello")
	m := receive(t, sub)
	if string(m.Data) != "hello" || m.Header.Get("Delay-Attempt") != "1" {
		t.Fatalf("delivery %q with %v", m.Data, m.Header)
	}
	if code, body := get(t, at["http"]+"/metrics"); code != 200 || !strings.Contains(body, "delaybridge_published_total 1") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %d\n%s", code, body)
	}

	first.signal(syscall.SIGTERM)
	began := time.Now()
	first.await("stopping in order")
	if code, body := get(t, at["http"]+"/readyz"); code != 503 || !strings.Contains(body, "stopping") {
		t.Errorf("/readyz while it stops: %d %s", code, body)
	}
	if code, _ := get(t, at["http"]+"/healthz"); code != 200 {
		t.Errorf("/healthz while it stops: %d", code)
	}
	if reply, err := nc.Request(m.Reply, []byte("+ACK"), patience); err != nil || len(reply.Data) != 0 {
		t.Fatalf("acknowledgement while it stops: %v, %v", reply, err)
	}
	if code := first.exit(15*time.Second - time.Since(began)); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if state := stateOf(t, redis, "a"); state != job.Done {
		t.Errorf("job is %q, so it would be delivered again", state)
	}

	second := start(t, args...)
	second.ready()
	put(t, srv.URL(), "--id", "b", "orders.x", "again")
	if m := receive(t, sub); string(m.Data) != "again" {
		t.Errorf("after the restart %q was delivered first", m.Data)
	}
}

func stateOf(t *testing.T, redis *testredis.Server, id string) job.State {
	t.Helper()
	s, err := redisdelay.Open(context.Background(), redisdelay.Options{URL: redis.URL(), BridgeID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := s.Get(context.Background(), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	return info[0].State
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	p := start(t, "serve", "--nats-url", srv.URL(), "--http-addr", "off")
	p.ready()
	_, sub := worker(t, srv.URL(), "orders.x")
	put(t, srv.URL(), "orders.x", "held")
	receive(t, sub)
	p.signal(syscall.SIGTERM)
	p.await("stopping in order")
	p.signal(os.Interrupt)
	if code := p.exit(patience); code != 1 {
		t.Errorf("exit %d", code)
	}
	p.await("second signal")
}

func TestDrainEnds(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	p := start(t, "serve", "--nats-url", srv.URL(), "--http-addr", "off", "--drain", "100ms")
	p.ready()
	_, sub := worker(t, srv.URL(), "orders.x")
	put(t, srv.URL(), "orders.x", "held")
	receive(t, sub)
	p.signal(syscall.SIGTERM)
	began := time.Now()
	p.await("deliveries in flight")
	if code, took := p.exit(patience), time.Since(began); code != 0 || took > 5*time.Second {
		t.Errorf("exit %d after %v; the default of drain is 10s", code, took)
	}
}

func TestSameIDRefused(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	start(t, "serve", "--nats-url", srv.URL(), "--id", "one", "--http-addr", "off").ready()
	r := run(t, "serve", "--nats-url", srv.URL(), "--id", "one", "--http-addr", "off")
	if r.code != 1 || !strings.Contains(r.err, `"one"`) || !strings.Contains(r.err, "--id") {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
	start(t, "serve", "--nats-url", srv.URL(), "--id", "two", "--http-addr", "off").ready()
}

func TestReload(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() bool {
		r := run(t, "put", "--nats-url", srv.URL(), "billing.x", "hello")
		return r.code == 1 && strings.Contains(r.err, "403/20403")
	}
	write("targets: {allow: [orders.>]}\nlog: {level: info}\n")
	p := start(t, "serve", "--nats-url", srv.URL(), "--config", file, "--http-addr", "off")
	p.ready()
	if !refused() {
		t.Error("billing.x is taken although only orders.> is allowed")
	}
	write("targets: {allow: [orders.>, billing.>]}\njobs: {ack_wait: 5s}\nlocal: {max_jobs: 1}\nfailover: {dwell: 1m}\n")
	p.signal(syscall.SIGHUP)
	if line := p.await("configuration reloaded"); !strings.Contains(line, "failover.dwell,local.max_jobs,targets.allow") {
		t.Errorf("changes not named: %s", line)
	}
	if line := p.await("need a restart"); !strings.Contains(line, "jobs.ack_wait") {
		t.Errorf("keys not named: %s", line)
	}
	if refused() {
		t.Error("billing.x is refused after the reload")
	}
	if r := run(t, "put", "--nats-url", srv.URL(), "--in", "1h", "billing.x", "second"); r.code != 1 || !strings.Contains(r.err, "429/20429") {
		t.Errorf("beyond the new limit: exit %d, %s", r.code, r.err)
	}
	// This one is noticed without a signal, and is wrong.
	write("targets: {alow: [orders.>]}\n")
	if line := p.await("not reloaded"); !strings.Contains(line, "targets.alow") || !strings.Contains(line, "bridge.yaml:1") {
		t.Errorf("error not named: %s", line)
	}
	if refused() {
		t.Error("a file that is wrong changed something")
	}
}

func TestServeWaitsForNATS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p := start(t, "serve", "--nats-url", "nats://user:hunter2@"+addr, "--http-addr", "off")
	p.await("waiting for NATS")
	srv, err := startNATS("nats://user:hunter2@"+addr, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer stopNATS(srv)
	p.ready()
	if strings.Contains(p.output(), "hunter2") {
		t.Error("the password is in the log")
	}
}

// TestServeWithoutRedis: the bridge starts, is ready and takes jobs while Redis is
// away, and gives them to Redis when it comes.
func TestServeWithoutRedis(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	redis := testredis.Start(t)
	redis.Kill()
	p := start(t, "serve", "--nats-url", srv.URL(), "--redis-url", redis.URL(), "--http-addr", "127.0.0.1:0", "--failover-dwell", "100ms", "--failover-probe-every", "50ms")
	at := p.ready()
	if at["mode"] != "local" {
		t.Errorf("ready line says %v", at)
	}
	if code, body := get(t, at["http"]+"/readyz"); code != 200 || !strings.Contains(body, "local") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	r := run(t, "put", "--nats-url", srv.URL(), "--json", "--id", "a", "--in", "1h", "orders.x", "hello")
	if r.code != 0 || !strings.Contains(r.out, `"stored":"local"`) {
		t.Errorf("exit %d, %s%s", r.code, r.out, r.err)
	}
	if _, body := get(t, at["http"]+"/metrics"); !strings.Contains(body, `delaybridge_mode{mode="local"} 1`) ||
		!strings.Contains(body, `,service="delaybridge"} 1`) || !strings.Contains(body, `delaybridge_local_jobs_limit 10000`) ||
		!strings.Contains(body, `delaybridge_wal_fsync_seconds_count{log="local"}`) || !strings.Contains(body, `delaybridge_wal_bytes{log="journal"}`) {
		t.Errorf("/metrics: %s", body)
	}
	redis.Restart()
	modeBecomes(t, at["http"], "redis")
	if state := stateOf(t, redis, "a"); state != job.Pending {
		t.Errorf("the job is %q in Redis", state)
	}
	r = run(t, "put", "--nats-url", srv.URL(), "--json", "--in", "1h", "orders.x", "hello")
	if r.code != 0 || !strings.Contains(r.out, `"stored":"redis"`) {
		t.Errorf("exit %d, %s%s", r.code, r.out, r.err)
	}
}

// modeBecomes waits until /readyz says that the bridge is in mode.
func modeBecomes(t *testing.T, url, mode string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		code, body := get(t, url+"/readyz")
		if code == 200 && strings.Contains(body, mode) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not in mode %s: %d %s", mode, code, body)
		}
	}
}

// TestLocalStoreIsDurable: what was acknowledged is there after a kill.
func TestLocalStoreIsDurable(t *testing.T) {
	t.Parallel()
	srv, dir := testnats.Start(t), t.TempDir()
	args := []string{"serve", "--nats-url", srv.URL(), "--store", "local", "--http-addr", "off", "--data-dir", dir, "--id", "one"}
	first := start(t, args...)
	if at := first.ready(); at["store"] != "local" || at["data_dir"] != dir {
		t.Errorf("ready line says %v", at)
	}
	r := run(t, "put", "--nats-url", srv.URL(), "--json", "--in", "1s", "orders.x", "hello")
	if r.code != 0 || !strings.Contains(r.out, `"stored":"local"`) {
		t.Errorf("exit %d, %s%s", r.code, r.out, r.err)
	}
	if r := run(t, append([]string{"serve"}, append(args[1:len(args)-1], "two")...)...); r.code != 1 || !strings.Contains(r.err, dir) {
		t.Errorf("a second bridge with the same directory: exit %d, %s", r.code, r.err)
	}
	first.signal(syscall.SIGKILL)
	first.exit(patience)
	start(t, args...).ready()
	_, sub := worker(t, srv.URL(), "orders.x")
	if m := receive(t, sub); string(m.Data) != "hello" {
		t.Errorf("delivered %q", m.Data)
	}
}

func TestServeStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	p := start(t, "serve", "--nats-url", "nats://user:hunter2@127.0.0.1:1", "--http-addr", "127.0.0.1:0", "--log-level", "debug")
	p.await("waiting for NATS")
	p.signal(syscall.SIGTERM)
	if code := p.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
	if strings.Contains(p.output(), "hunter2") {
		t.Error("the password is in the log")
	}
}

func TestServeRefusesToStart(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(`authorization { users = [
		{ user: u, password: p, permissions: { subscribe: { deny: "delay.in.>" } } } ] }`))
	evicting := testredis.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	good := strings.Replace(srv.URL(), "nats://", "nats://u:p@", 1)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, tt := range []struct {
		name, args string
		code       int
		want       []string
	}{
		{"password", "--nats-url " + strings.Replace(srv.URL(), "nats://", "nats://u:hunter2@", 1), 2, []string{"refuses these credentials", srv.URL()}},
		{"permissions", "--nats-url " + good, 2, []string{"subscription to", "delay.in.>"}},
		{"redis evicts", "--redis-url " + evicting.URL() + " --nats-url " + good, 2, []string{evicting.Addr(), "noeviction"}},
		{"redis password", "--redis-url redis://u:hunter2@" + evicting.Addr() + " --nats-url " + good, 2, []string{evicting.Addr()}},
		{"port taken", "--http-addr " + busy.Addr().String() + " --nats-url " + good, 1, []string{busy.Addr().String(), "--http-addr"}},
	} {
		args := append([]string{"serve", "--http-addr", "off", "--log-level", "debug"}, strings.Fields(tt.args)...)
		r := run(t, args...)
		if r.code != tt.code {
			t.Errorf("%s: exit %d, want %d: %s", tt.name, r.code, tt.code, r.err)
		}
		for _, want := range tt.want {
			if !strings.Contains(r.err, want) {
				t.Errorf("%s: no %q in %s", tt.name, want, r.err)
			}
		}
		if strings.Contains(r.out+r.err, "hunter2") {
			t.Errorf("%s: the password is in %s", tt.name, r.err)
		}
	}
}
