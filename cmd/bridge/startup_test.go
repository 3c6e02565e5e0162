package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// noHost is a name that no resolver is asked for: it is none.
const noHost = "name..invalid"

// aclRedis is a server with users by whom a command, or the keys, are not allowed.
func aclRedis(t *testing.T) *testredis.Server {
	t.Helper()
	server := testredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	for _, rule := range []string{
		"bob reset on >p ~delay:* +@all", "noload reset on >p ~delay:* +@all -script", "nozadd reset on >p ~delay:* +@all -zadd", "nokeys reset on >p ~other:* +@all",
	} {
		args := []any{"acl", "setuser"}
		for _, word := range strings.Fields(rule) {
			args = append(args, word)
		}
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.HSet(t.Context(), "sharded:format", "version", 1, "shards", 3).Err(); err != nil {
		t.Fatal(err)
	}
	return server
}

// TestWrongInputEndsTheStart: what waiting does not mend is named, and ends the start
// with 2, whether the server can be reached or not.
func TestWrongInputEndsTheStart(t *testing.T) {
	t.Parallel()
	p, foreign := newPKI(t), newPKI(t)
	cert, key := p.issue("client", 40)
	_, otherKey := foreign.issue("client", 41)
	nothing, junk, dir := secretFile(t, "nothing", ""), secretFile(t, "junk", "junk"), t.TempDir()
	plain, crypt := testnats.Start(t), natsTLS(t, p, "")
	server := aclRedis(t)
	_, redisTLSURL := redisTLS(t, p)
	redisAt := func(user string) string { return "redis://" + user + ":p@" + server.Addr() }
	asTLS := func(url string) string { return "tls" + strings.TrimPrefix(url, "nats") }
	for _, tt := range []struct {
		name, args string
		want       []string
	}{
		{"creds file missing", "--nats-creds " + dir + "/none", []string{"nats.creds", dir + "/none", "no such file"}},
		{"creds file is a directory", "--nats-creds " + dir, []string{"nats.creds", "is a directory"}},
		{"creds file empty", "--nats-creds " + nothing, []string{"nats.creds", nothing}},
		{"creds file without a seed", "--nats-creds " + junk, []string{"nats.creds", junk}},
		{"password file empty", "--nats-user u --nats-password-file " + nothing, []string{"nats.password_file", nothing, "empty"}},
		{"password twice", "--nats-user u --nats-password p --nats-password-file " + junk, []string{"nats.password_file", "nats.password"}},
		{"user twice", "--nats-url nats://u:p@127.0.0.1:1 --nats-password-file " + junk, []string{"nats.password_file", "nats.url"}},
		{"authority unreadable", "--nats-ca " + junk, []string{"nats.ca", junk}},
		{"certificate unreadable", "--nats-cert " + junk + " --nats-key " + key, []string{"nats.cert", junk}},
		{"key of another certificate", "--nats-cert " + cert + " --nats-key " + otherKey, []string{"nats.key", otherKey, "does not match"}},
		{"authority of others", "--nats-ca " + foreign.ca + " --nats-url " + crypt, []string{"nats.ca", crypt}},
		{"no TLS at first there", "--nats-tls-first true --nats-url " + plain.URL(), []string{"TLS", plain.URL()}},
		{"no TLS there", "--nats-url " + asTLS(plain.URL()), []string{"TLS", asTLS(plain.URL())}},
		{"Redis: unknown user", "--redis-url " + redisAt("eve"), []string{server.Addr(), "refuses these credentials", "redis.user", "redis.password_file"}},
		{"Redis: password file empty", "--redis-user bob --redis-password-file " + nothing + " --redis-url redis://" + server.Addr(), []string{"redis.password_file", "empty"}},
		{"Redis: a command forbidden", "--redis-url " + redisAt("noload"), []string{server.Addr(), "script|load"}},
		{"Redis: a command of scripts forbidden", "--redis-url " + redisAt("nozadd"), []string{server.Addr(), "forbids zadd,", "ACL SETUSER <user> ~delay:* +zadd"}},
		{"Redis: keys forbidden", "--redis-url " + redisAt("nokeys"), []string{server.Addr(), "~delay:*"}},
		{"Redis: other shards", "--prefix sharded --redis-url redis://" + server.Addr(), []string{server.Addr(), "3 shards"}},
		{"Redis: authority of others", "--redis-ca " + foreign.ca + " --redis-url " + redisTLSURL, []string{"redis.ca", redisTLSURL[len("rediss://"):]}},
		{"Redis: key of another certificate", "--redis-url rediss://127.0.0.1:1 --redis-cert " + cert + " --redis-key " + otherKey, []string{"redis.key", "does not match"}},
		{"Redis: authority unreadable", "--redis-url rediss://127.0.0.1:1 --redis-ca " + junk, []string{"redis.ca", junk}},
		{"data_dir below a file", "--data-dir " + junk + "/x", []string{"data_dir", junk}},
		{"data_dir that cannot be made", "--data-dir /proc/x", []string{"data_dir /proc/x"}},
		{"address of another machine", "--http-addr 192.0.2.1:80 --http-insecure true", []string{"http.addr", "192.0.2.1:80"}},
		{"address that is none", "--http-insecure true --http-addr " + noHost + ":80", []string{"http.addr", noHost}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"serve", "--nats-url", "nats://127.0.0.1:1", "--http-addr", "off"}, strings.Fields(tt.args)...)
			r := run(t, args...)
			if r.code != 2 {
				t.Errorf("exit %d, want 2: %s", r.code, r.err)
			}
			for _, want := range tt.want {
				if !strings.Contains(r.err, want) {
					t.Errorf("no %q in %s", want, r.err)
				}
			}
		})
	}
}

// TestStartWaitsForNATS: what may come yet is waited for, with a line that says what.
func TestStartWaitsForNATS(t *testing.T) {
	t.Parallel()
	p, foreign := newPKI(t), newPKI(t)
	cert, key := foreign.issue("client", 50)
	for _, tt := range []struct {
		name, args string
		want       []string
	}{
		{"name that is not known yet", "--nats-url nats://" + noHost + ":4222", []string{noHost, "no such host"}},
		{"certificate that is not known there", "--nats-url " + natsTLS(t, p, "") + " --nats-ca " + p.ca + " --nats-cert " + cert + " --nats-key " + key, []string{"nats.cert"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, append([]string{"serve", "--http-addr", "off"}, strings.Fields(tt.args)...)...)
			line := b.await("waiting for NATS")
			for _, want := range tt.want {
				if !strings.Contains(line, want) {
					t.Errorf("no %q in %s", want, line)
				}
			}
			b.signal(syscall.SIGTERM)
			if code := b.exit(patience); code != 0 {
				t.Errorf("exit %d", code)
			}
		})
	}
}

// TestStartWithoutRedis: no address of a Redis that may come yet keeps a bridge from
// taking jobs.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	b := start(t, "serve", "--nats-url", srv.URL(), "--redis-url", "redis://"+noHost+":6379", "--http-addr", "off")
	if line := b.await("Redis cannot be reached"); !strings.Contains(line, noHost) || !strings.Contains(line, "no such host") {
		t.Errorf("not said what is waited for: %s", line)
	}
	if at := b.ready(); at["mode"] != "local" {
		t.Errorf("ready with %v", at)
	}
}

// rotation is a kind of credentials of NATS: what a bridge has at first, how that
// becomes wrong and cuts its connections, and how its files come right again.
type rotation struct {
	name         string
	args         []string
	refuse, mend func()
	log          string // said meanwhile
}

func overwrite(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func passwordRotation(t *testing.T) rotation {
	user := func(password string) testnats.Option {
		return testnats.Config(`authorization { user: u, password: ` + password + ` }`)
	}
	srv, file := testnats.Start(t, user("first")), secretFile(t, "password", "first\n")
	return rotation{"password file", []string{"--nats-url", srv.URL(), "--nats-user", "u", "--nats-password-file", file},
		func() { srv.Reload(t, user("second")) }, func() { overwrite(t, file, "second\n") }, "Authorization Violation"}
}

func tokenRotation(t *testing.T) rotation {
	token := func(s string) testnats.Option { return testnats.Config(`authorization { token: ` + s + ` }`) }
	srv, file := testnats.Start(t, token("first")), secretFile(t, "token", "first\n")
	return rotation{"token file", []string{"--nats-url", srv.URL(), "--nats-password-file", file},
		func() { srv.Reload(t, token("second")) }, func() { overwrite(t, file, "second\n") }, "Authorization Violation"}
}

func credsRotation(t *testing.T) rotation {
	config, account := operatorConfig(t)
	srv := testnats.Start(t, testnats.Config(config))
	creds := func(lifetime time.Duration) string {
		text, err := os.ReadFile(credsFor(t, account, time.Now().Add(lifetime)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	file := secretFile(t, "creds", creds(time.Hour))
	return rotation{"creds", []string{"--nats-url", srv.URL(), "--nats-creds", file},
		func() { overwrite(t, file, creds(-time.Hour)); srv.Restart(t) }, func() { overwrite(t, file, creds(time.Hour)) }, "Authorization Violation"}
}

func caRotation(t *testing.T) rotation {
	first, second := newPKI(t), newPKI(t)
	tls := func(p *pki) testnats.Option {
		cert, key := p.issue("nats", 60)
		return testnats.Config(fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key))
	}
	srv := testnats.Start(t, tls(first))
	return rotation{"authority", []string{"--nats-url", srv.URL(), "--nats-ca", first.ca},
		func() { srv.Reload(t, tls(second)); srv.Restart(t) },
		func() {
			text, err := os.ReadFile(second.ca)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, first.ca, string(text))
		}, "x509"}
}

// TestRotatedNATSCredentials: a running bridge whose credentials are not taken any more
// says so and tries on, with what is in its files by then.
func TestRotatedNATSCredentials(t *testing.T) {
	t.Parallel()
	for _, kind := range []func(*testing.T) rotation{passwordRotation, tokenRotation, credsRotation, caRotation} {
		r := kind(t)
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, append([]string{"serve", "--http-addr", "127.0.0.1:0", "--data-dir", ""}, r.args...)...)
			at := b.ready()
			r.refuse()
			b.await(r.log)
			if code, body := get(t, at["http"]+"/readyz"); code != 503 || !strings.Contains(body, "no connection to NATS") {
				t.Errorf("/readyz while it is refused: %d %s", code, body)
			}
			r.mend()
			modeBecomes(t, at["http"], "local")
			if r := run(t, append(append([]string{"put"}, r.args...), "--in", "1h", "orders.x", "hello")...); r.code != 0 {
				t.Errorf("put: exit %d, %s", r.code, r.err)
			}
		})
	}
}

// TestRotatedRedisPassword: the server has another password for a while before the
// file has. TestServeOverTLS has the other order.
func TestRotatedRedisPassword(t *testing.T) {
	t.Parallel()
	srv, server, file := testnats.Start(t), aclRedis(t), secretFile(t, "password", "p")
	b := start(t, "serve", "--nats-url", srv.URL(), "--redis-url", "redis://"+server.Addr(), "--redis-user", "bob", "--redis-password-file", file,
		"--http-addr", "127.0.0.1:0", "--failover-dwell", "100ms", "--failover-probe-every", "50ms")
	at := b.ready()
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	for _, command := range [][]any{{"acl", "setuser", "bob", "resetpass", ">q"}, {"client", "kill", "user", "bob"}} {
		if err := c.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	modeBecomes(t, at["http"], "local")
	if !strings.Contains(b.output(), "WRONGPASS") {
		t.Errorf("not said why Redis is not used")
	}
	put(t, srv.URL(), "--id", "a", "--in", "1h", "orders.x", "hello")
	overwrite(t, file, "q")
	modeBecomes(t, at["http"], "redis")
	if state := stateOf(t, server, "a"); state != job.Pending {
		t.Errorf("the job is %q in Redis", state)
	}
}

// TestRotatedNkey: the public key is new, too. It runs in this process, so that the race
// detector sees where the key is changed.
func TestRotatedNkey(t *testing.T) {
	first, second := newKey(t, nkeys.CreateUser), newKey(t, nkeys.CreateUser)
	user := func(k nkey) testnats.Option {
		return testnats.Config(fmt.Sprintf(`authorization { users = [ { nkey: %s } ] }`, k.public))
	}
	srv, file := testnats.Start(t, user(first)), secretFile(t, "seed", first.seed)
	cfg, err := loadConfig(keyValues("nats.url", srv.URL(), "nats.nkey", file), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused, back := make(chan error, 1), make(chan struct{}, 1)
	nc, err := cfg.nats.connect(t.Context(), slog.New(slog.DiscardHandler), "test", append(adapter.ConnOptions(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case refused <- err:
			default:
			}
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
	srv.Reload(t, user(second))
	if err := <-refused; !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("refused with %v", err)
	}
	overwrite(t, file, second.seed)
	select {
	case <-back:
	case <-time.After(patience):
		t.Fatalf("not let in with the new key: %v", nc.LastError())
	}
}

// TestConnectionThatEndsForGood: the client gives up after an error of the server that
// it does not know. A bridge without its connection must not stay.
func TestConnectionThatEndsForGood(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	relay := relayTo(t, strings.TrimPrefix(srv.URL(), "nats://"))
	b := start(t, "serve", "--nats-url", "nats://"+relay.addr, "--http-addr", "off", "--data-dir", "")
	b.ready()
	relay.say("-ERR 'Something New'\r\n")
	if code := b.exit(patience); code != 1 {
		t.Errorf("exit %d", code)
	}
	if log := b.output(); !strings.Contains(log, "Something New") || !strings.Contains(log, "has ended for good") {
		t.Error("not said why")
	}
}

// natsRelay is between a bridge and its NATS server.
type natsRelay struct {
	addr string

	mu    sync.Mutex
	conns []net.Conn // of clients
}

func relayTo(t *testing.T, server string) *natsRelay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &natsRelay{addr: l.Addr().String()}
	var pipes sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); pipes.Wait() })
	pipes.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			pipes.Go(func() { r.pipe(client, server) })
		}
	})
	return r
}

func (r *natsRelay) pipe(client net.Conn, server string) {
	defer client.Close()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	r.mu.Lock()
	r.conns = append(r.conns, client)
	r.mu.Unlock()
	go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
	_, _ = io.Copy(client, up)
}

// say adds a line of the protocol to what the server says.
func (r *natsRelay) say(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_, _ = c.Write([]byte(line))
	}
}
