package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

// contexts writes contexts of the nats command line into a new home; the one named
// selected is.
func contexts(t *testing.T, selected string, byName map[string]string) (env []string) {
	t.Helper()
	home := t.TempDir()
	dir := filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range byName {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "nats", "context.txt"), []byte(selected+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"XDG_CONFIG_HOME=" + home}
}

// TestContextsConnect: a server that demands a password takes who uses the context.
func TestContextsConnect(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(`authorization { users = [
		{ user: u, password: hunter2 }, { user: limited, password: p, permissions: { subscribe: "_INBOX_limited.>" } } ] }`))
	env := contexts(t, "good", map[string]string{
		"good":    `{"url":"` + srv.URL() + `","user":"u","password":"hunter2","description":"x"}`,
		"wrong":   `{"url":"` + srv.URL() + `","user":"u","password":"hunter3"}`,
		"limited": `{"url":"` + srv.URL() + `","user":"limited","password":"p","inbox_prefix":"_INBOX_limited"}`,
		"nsc":     `{"nsc":"nsc://o/a/u"}`,
		"op":      `{"url":"` + srv.URL() + `","user":"u","password":"op://vault/hunter4"}`,
		"inurl":   `{"url":"` + strings.Replace(srv.URL(), "//", "//nobody:hunter3@", 1) + `"}`,
		"broken":  `{"url":`,
	})
	bridge := start(t, "serve", "--nats-url", strings.Replace(srv.URL(), "//", "//u:hunter2@", 1), "--http-addr", "off", "--data-dir=")
	bridge.ready()
	for _, tt := range []struct {
		args string
		env  string
		code int
		errs string
	}{
		{args: "put orders.x x"}, // the selected one
		{args: "stats"},
		{args: "stats --context good"},
		{args: "stats --nats-context good"},
		{args: "stats --context limited"},
		{args: "stats", env: "NATS_CONTEXT=good"},
		{args: "stats --context good", env: "NATS_CONTEXT=wrong"},
		{args: "stats --context wrong", code: 2, errs: "refuses these credentials"},
		{args: "stats --context wrong --nats-user u --nats-password hunter2"},
		{args: "stats --context inurl", code: 2, errs: "refuses these credentials"},
		{args: "stats --context inurl --nats-user u --nats-password hunter2"},               // who connects comes from one place
		{args: "stats --nats-url " + srv.URL(), code: 2, errs: "refuses these credentials"}, // no selected one then
		{args: "stats", env: "NATS_URL=" + srv.URL(), code: 2, errs: "refuses these credentials"},
		{args: "stats --context nope", code: 2, errs: `no context "nope"`},
		{args: "stats --context ../x", code: 2, errs: "is not the name of a context"},
		{args: "stats --context nsc", code: 2, errs: "nsc is not supported"},
		{args: "stats --context op", code: 2, errs: "password refers to op://, which is not supported"},
		{args: "stats --context broken", code: 2, errs: "broken.json"},
	} {
		e := env
		if tt.env != "" {
			e = append(e, tt.env)
		}
		r := runWith(t, e, "", strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.err, tt.errs) {
			t.Errorf("%s with %q: exit %d, %q; want %d, %q", tt.args, tt.env, r.code, r.err, tt.code, tt.errs)
		}
		for _, secret := range []string{"hunter2", "hunter3", "hunter4"} {
			if !strings.Contains(tt.args, secret) && strings.Contains(r.out+r.err, secret) {
				t.Errorf("%s: a password is in %q", tt.args, r.out+r.err)
			}
		}
	}
}

func TestContextSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	creds := filepath.Join(dir, "u.creds")
	if err := os.WriteFile(creds, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(contexts(t, "full", map[string]string{
		"full": `{"url":"nats://a:1, nats://b:2","creds":"~/u.creds","tls_first":true,"inbox_prefix":"_IN"}`, "token": `{"token":"t","creds":"$HOME/u.creds"}`,
	}), "HOME="+dir)
	c, err := loadProducerConfig(nil, env)
	if err != nil || c.nats.url() != "nats://a:1,nats://b:2" || c.nats.creds != creds || !c.nats.tlsFirst || c.nats.inbox() != "_IN" {
		t.Errorf("%+v, %v", c.nats, err)
	}
	// A bridge follows a context only when it is told to.
	if c, err := loadConfig(nil, env); err != nil || c.nats.url() != "nats://127.0.0.1:4222" {
		t.Errorf("%+v, %v", c.nats, err)
	}
	if c, err := loadConfig(given("nats.context", "full", "nats.url", "c:3"), env); err != nil || c.nats.url() != "nats://c:3" || c.nats.creds != creds {
		t.Errorf("%+v, %v", c.nats, err)
	}
	if c, err := loadProducerConfig(given("nats.context", "token"), env); err != nil || c.nats.token != "t" || c.nats.creds != creds {
		t.Errorf("%+v, %v", c.nats, err)
	}
	// Who connects comes from one place.
	for _, own := range []source{given("nats.context", "token", "nats.user", "u"), given("nats.context", "token", "nats.url", "nats://u:p@h")} {
		if c, err := loadProducerConfig(own, env); err != nil || c.nats.token != "" || c.nats.creds != "" {
			t.Errorf("%v: %+v, %v", own, c.nats, err)
		}
	}
	if c, err := loadProducerConfig(nil, []string{"HOME=" + dir}); err != nil || c.nats.url() != "nats://127.0.0.1:4222" {
		t.Errorf("no contexts: %+v, %v", c.nats, err)
	}
	if _, err := loadProducerConfig(given("nats.context", "full"), nil); err == nil || !strings.Contains(err.Error(), "neither HOME nor XDG_CONFIG_HOME") {
		t.Errorf("no home: %v", err)
	}
	if _, err := loadProducerConfig(given("nats.token", "t", "nats.user", "u"), nil); err == nil {
		t.Error("token and user are taken")
	}
}
