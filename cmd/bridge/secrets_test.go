package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
)

// mark is in every password and token of these tests.
const mark = "hunter2"

// secrets are texts that must not be seen.
type secrets []string

// hidden fails when text shows a secret.
func (s secrets) hidden(t *testing.T, what, text string) {
	t.Helper()
	for _, secret := range append(s, mark, url.QueryEscape(mark)) {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s shows %q: ...%s...", what, secret, text[max(0, i-100):min(len(text), i+100)])
		}
	}
}

// runHidden runs a command to its end.
func (s secrets) runHidden(t *testing.T, code int, args ...string) {
	t.Helper()
	r := run(t, args...)
	if r.code != code {
		t.Errorf("%v: exit %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	s.hidden(t, args[0], r.out+r.err)
}

// markedRedis is a server that wants a marked password.
func markedRedis(t *testing.T) (server *testredis.Server, rightURL, wrongURL string) {
	t.Helper()
	server = testredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	if err := c.Do(t.Context(), "acl", "setuser", "bob", "on", ">"+mark, "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	return server, "redis://bob:" + mark + "@" + server.Addr(), "redis://bob:" + mark + "wrong@" + server.Addr()
}

// TestSecretsStayOutOfSight: whatever happens, no output has a secret in it.
func TestSecretsStayOutOfSight(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(`authorization { user: u, password: `+mark+` }`))
	_, rightRedis, wrongRedis := markedRedis(t)
	rightNATS := strings.Replace(srv.URL(), "//", "//u:"+mark+"@", 1)
	wrongNATS := strings.Replace(srv.URL(), "//", "//u:"+mark+"wrong@", 1)
	away, redisAway := "nats://u:"+mark+"@127.0.0.1:1", "redis://:"+mark+"@127.0.0.1:1"
	none := secrets{}
	for _, level := range []string{"debug", "error"} {
		serve := []string{"serve", "--id", "one", "--http-addr", "127.0.0.1:0", "--log-level", level}
		none.runHidden(t, 2, append(serve, "--nats-url", wrongNATS)...)
		none.runHidden(t, 2, append(serve, "--nats-url", srv.URL(), "--nats-user", "u", "--nats-password", mark+"wrong")...)
		none.runHidden(t, 2, append(serve, "--nats-url", srv.URL(), "--nats-user", mark)...)
		none.runHidden(t, 2, append(serve, "--nats-url", rightNATS, "--redis-url", wrongRedis)...)
	}
	for _, to := range [][2]string{{rightNATS, rightRedis}, {wrongNATS, wrongRedis}, {away, redisAway}} {
		none.runHidden(t, min(1, strings.Count(to[0], "wrong")+strings.Count(to[0], ":1")), "doctor", "--json", "--nats-url", to[0], "--redis-url", to[1])
	}
	none.runHidden(t, 2, "put", "--nats-url", wrongNATS, "orders.x", "hello")
	none.runHidden(t, 1, "put", "--nats-url", away, "orders.x", "hello")

	// Both servers away, then in reach of a bridge.
	waiting := start(t, "serve", "--nats-url", away, "--redis-url", redisAway, "--http-addr", "off", "--log-level", "debug")
	waiting.await("waiting for NATS")
	waiting.signal(syscall.SIGTERM)
	waiting.exit(patience)
	none.hidden(t, "a bridge that waits", waiting.output())

	p := start(t, "serve", "--nats-url", rightNATS, "--redis-url", rightRedis, "--id", "one", "--http-addr", "127.0.0.1:0", "--http-pprof", "true", "--log-level", "debug", "--log-format", "text")
	at := p.ready()
	none.runHidden(t, 0, "put", "--nats-url", rightNATS, "--in", "1h", "orders.x", "hello")
	srv.Restart(t)
	p.await("NATS connection is back")
	for _, page := range []string{"/readyz", "/healthz", "/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		_, body := get(t, at["http"]+page)
		none.hidden(t, page, body)
	}
	none.hidden(t, "the admin API", configOf(t, rightNATS))
	p.signal(syscall.SIGTERM)
	p.exit(patience)
	none.hidden(t, "a bridge", p.output())
}

// configOf asks the admin API for the configuration of the bridge.
func configOf(t *testing.T, natsURL string) string {
	t.Helper()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	m, err := nc.Request("delay.api.config", nil, patience)
	for end := time.Now().Add(patience); errors.Is(err, nats.ErrNoResponders) && time.Now().Before(end); {
		m, err = nc.Request("delay.api.config", nil, patience) // its connection is not back yet
	}
	if err != nil {
		t.Fatalf("the admin API does not answer: %v", err)
	}
	if !strings.Contains(string(m.Data), "nats.url") {
		t.Errorf("no configuration: %s", m.Data)
	}
	return string(m.Data)
}

// TestSecretFilesStayOutOfSight: nor what files hold.
func TestSecretFilesStayOutOfSight(t *testing.T) {
	t.Parallel()
	key, account := newKey(t, nkeys.CreateUser), newKey(t, nkeys.CreateAccount)
	url := testnats.Start(t, testnats.Config(`authorization { user: u, password: p }`)).URL()
	creds := credsFor(t, account, time.Now().Add(time.Hour))
	text, err := os.ReadFile(creds)
	if err != nil {
		t.Fatal(err)
	}
	all := secrets{key.seed}
	for _, line := range strings.Split(string(text), "\n") {
		if len(line) > 40 && !strings.Contains(line, " ") {
			all = append(all, line)
		}
	}
	if len(all) < 3 {
		t.Fatalf("no token and seed in %s", text)
	}
	broken := secretFile(t, "broken.creds", strings.ReplaceAll(string(text), "-----", "--"))
	seed, brokenSeed := secretFile(t, "seed", key.seed), secretFile(t, "seed", key.seed[:len(key.seed)-3])
	all = append(all, key.seed[:20])
	server, _, _ := markedRedis(t)
	password := secretFile(t, "password", mark+"wrong\n")
	for _, args := range [][]string{
		{"--nats-creds", creds}, {"--nats-creds", broken}, {"--nats-nkey", seed}, {"--nats-nkey", brokenSeed}, {"--nats-creds", seed}, {"--nats-nkey", creds},
	} {
		all.runHidden(t, 2, append([]string{"serve", "--log-level", "debug", "--http-addr", "off", "--nats-url", url}, args...)...)
		all.runHidden(t, 1, append([]string{"doctor", "--nats-url", url}, args...)...)
	}
	all.runHidden(t, 2, "serve", "--log-level", "debug", "--http-addr", "off", "--nats-url", url, "--redis-url", "redis://"+server.Addr(), "--redis-user", "bob", "--redis-password-file", password)
	all.runHidden(t, 1, "doctor", "--nats-url", url, "--redis-url", "redis://"+server.Addr(), "--redis-user", "bob", "--redis-password-file", password)
}

// TestSecretsStayOutOfConfigErrors: nor what is wrong with a file or a flag.
func TestSecretsStayOutOfConfigErrors(t *testing.T) {
	t.Parallel()
	for i, text := range []string{
		"nats:\n  pasword: " + mark,
		"nats:\n  password: [" + mark + "]",
		"nats:\n  password: " + mark + "\n  password: " + mark,
		"nats:\n  password: {a: " + mark + "}",
		"redis:\n  url: " + mark,
		"redis:\n  password: " + mark + "\n  user: u\nid: '*'",
		"nats: {password: \"" + mark + "\n",
		"nats:\n\tpassword: " + mark,
		"password: &x " + mark + "\nnats: *y",
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := run(t, "serve", "--config", file)
		if r.code != 2 {
			t.Errorf("file %d: exit %d, %s", i, r.code, r.err)
		}
		secrets{}.hidden(t, fmt.Sprintf("the error about file %d", i), r.out+r.err)
	}
	for _, args := range [][]string{
		{"--nats-pasword", mark}, {"--nats-pasword=" + mark}, {"--redis-password=" + mark, "--redis-url", "redis://h", "--redis-password-file", "/dev/null"},
		{"--nats-password", mark}, {"--redis-url", "redis://u:" + mark + "@h/x"},
	} {
		secrets{}.runHidden(t, 2, append([]string{"serve"}, args...)...)
		secrets{}.runHidden(t, 2, append([]string{"doctor"}, args...)...)
	}
}
