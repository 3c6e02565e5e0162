package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
)

// TestShownConfig: the admin API shows every key, and no secret.
func TestShownConfig(t *testing.T) {
	const secret = "hunter2"
	for _, set := range [][]string{
		{"nats.user", "x://" + secret, "nats.password", "x://" + secret, "redis.url", "redis://r:6379", "redis.password", "x://" + secret + "/"},
		{"nats.token", "x://" + secret, "redis.url", "redis://r:6379"},
		{"nats.url", "nats://u:" + secret + "@h1:4222,tls://" + secret + "@h2", "nats.user", "u", "nats.password", secret, "redis.url", "redis://u:" + secret + "@r:6379/1"},
		{"nats.url", "u:" + secret + "@h1:4222", "nats.token", secret, "redis.url", "rediss://:" + secret + "@r:6379/1"},
		{"nats.user", secret, "redis.url", "redis://r:6379", "redis.user", "u", "redis.password", secret},
	} {
		cfg, err := loadConfig(keyValues(append(set, "id", "b1")...), nil)
		if err != nil {
			t.Fatal(err)
		}
		shown := cfg.shown()
		for _, k := range keys {
			v, ok := shown[k.name]
			if !ok || strings.Contains(v, secret) {
				t.Errorf("%s is shown as %q, %v", k.name, v, ok)
			}
		}
		if shown["id"] != "b1" || shown["store"] != "redis" || shown["local.max_jobs"] != "10000" || shown["jobs.ack_wait"] != "30s" || !strings.Contains(shown["redis.url"], "r:6379") {
			t.Errorf("%v", shown)
		}
	}
}

// TestAPIKeys: mutations are switched off while the bridge runs; without api.enabled
// there is no service.
func TestAPIKeys(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ask := func(verb, body string) string {
		t.Helper()
		m, err := nc.Request("delay.api."+verb, []byte(body), 10*time.Second)
		if err != nil {
			return err.Error()
		}
		return string(m.Data)
	}
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("api: {mutations: true}\n")
	p := start(t, "serve", "--nats-url", srv.URL(), "--config", file, "--http-addr", "off", "--id", "b1")
	p.ready()
	if got := ask("pause", `{"target":"orders.>"}`); got != `{"paused":["orders.>"]}` {
		t.Errorf("pause: %s", got)
	}
	write("api: {mutations: false}\n")
	p.signal(syscall.SIGHUP)
	p.await("configuration reloaded")
	if got := ask("resume", `{"target":">"}`); !strings.Contains(got, "api.mutations on bridge b1") {
		t.Errorf("resume: %s", got)
	}
	var cfg api.ConfigAnswer
	if err := json.Unmarshal([]byte(ask("config", "")), &cfg); err != nil || cfg.Bridge != "b1" || cfg.Config["api.mutations"] != "false" {
		t.Errorf("config: %+v, %v", cfg, err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(15 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	p = start(t, "serve", "--nats-url", srv.URL(), "--http-addr", "off", "--id", "b1", "--api-enabled=false")
	p.ready()
	if got := ask("stats", ""); got != nats.ErrNoResponders.Error() {
		t.Errorf("without api.enabled: %s", got)
	}
}

// TestAnswersThatAreRefused: who names a reply subject that the bridge may not publish
// to does not fill its log, and the operator is told what to allow.
func TestAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(`authorization { users: [
		{user: bridge, password: p, permissions: {publish: {deny: "forbidden.>"}}}, {user: other, password: p}
	] }`))
	nc, err := nats.Connect(srv.URL(), nats.UserInfo("other", "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	p := start(t, "serve", "--nats-url", srv.URL(), "--nats-user", "bridge", "--nats-password", "p", "--http-addr", "off", "--id", "b1", "--drain", "1s")
	p.ready()
	const calls = 500
	for range calls {
		if err := nc.PublishRequest("delay.api.bridges", "forbidden.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := nc.Request("delay.api.bridges", nil, patience); err != nil {
		t.Fatal(err)
	}
	p.await("allow=forbidden.x")
	p.signal(syscall.SIGTERM)
	if code := p.exit(15 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	if n := strings.Count(p.output(), "forbidden.x"); n > calls/4 {
		t.Errorf("%d lines about %d answers that were refused", n, calls)
	}
}
