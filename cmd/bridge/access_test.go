package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
)

// secretFile makes a file that its owner can read.
func secretFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// connects reports how a command with these keys gets on with NATS.
func connects(t *testing.T, kv ...string) error {
	t.Helper()
	cfg, err := loadConfig(keyValues(kv...), nil)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := cfg.nats.dial("test")
	if err == nil {
		nc.Close()
	}
	return err
}

func wantAccess(t *testing.T, what string, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("%s: %v, want %q", what, err, text)
	}
}

func TestNATSWithPassword(t *testing.T) {
	user := testnats.Start(t, testnats.Config(`authorization { user: u, password: p }`)).URL()
	token := testnats.Start(t, testnats.Config(`authorization { token: secret }`)).URL()
	withUser := func(url, info string) string { return strings.Replace(url, "nats://", "nats://"+info+"@", 1) }
	wantAccess(t, "user", connects(t, "nats.url", user, "nats.user", "u", "nats.password", "p"), "")
	wantAccess(t, "user in the URL", connects(t, "nats.url", withUser(user, "u:p")), "")
	wantAccess(t, "no user", connects(t, "nats.url", user), "refuses these credentials")
	wantAccess(t, "another password", connects(t, "nats.url", user, "nats.user", "u", "nats.password", "q"), "refuses these credentials")
	wantAccess(t, "token", connects(t, "nats.url", token, "nats.user", "secret"), "")
	wantAccess(t, "token in the URL", connects(t, "nats.url", withUser(token, "secret")), "")
	wantAccess(t, "another token", connects(t, "nats.url", token, "nats.user", "secrets"), "refuses these credentials")
}

func TestNATSWithNkey(t *testing.T) {
	good, other := newKey(t, nkeys.CreateUser), newKey(t, nkeys.CreateUser)
	url := testnats.Start(t, testnats.Config(fmt.Sprintf(`authorization { users = [ { nkey: %s } ] }`, good.public))).URL()
	wantAccess(t, "seed", connects(t, "nats.url", url, "nats.nkey", secretFile(t, "seed", good.seed+"\n")), "")
	wantAccess(t, "another seed", connects(t, "nats.url", url, "nats.nkey", secretFile(t, "seed", other.seed)), "refuses these credentials")
	wantAccess(t, "no seed", connects(t, "nats.url", url, "nats.nkey", secretFile(t, "seed", "nothing")), "nats.nkey")
}

// nkey is a key pair with its two halves as text.
type nkey struct {
	nkeys.KeyPair
	public, seed string
}

func newKey(t *testing.T, create func() (nkeys.KeyPair, error)) nkey {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return nkey{pair, public, string(seed)}
}

// credsFor makes the credentials file of a new user of the account.
func credsFor(t *testing.T, account nkey, expires time.Time) string {
	t.Helper()
	user := newKey(t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(user.public)
	claims.Expires = expires.Unix()
	token, err := claims.Encode(account.KeyPair)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(token, []byte(user.seed))
	if err != nil {
		t.Fatal(err)
	}
	return secretFile(t, "user.creds", string(creds))
}

// operatorConfig is of a server that takes the users of one account.
func operatorConfig(t *testing.T) (config string, account nkey) {
	t.Helper()
	operator, account := newKey(t, nkeys.CreateOperator), newKey(t, nkeys.CreateAccount)
	operatorJWT, err := jwt.NewOperatorClaims(operator.public).Encode(operator.KeyPair)
	if err != nil {
		t.Fatal(err)
	}
	accountJWT, err := jwt.NewAccountClaims(account.public).Encode(operator.KeyPair)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: { %s: %s }", operatorJWT, account.public, accountJWT), account
}

func TestNATSWithCredentials(t *testing.T) {
	config, account := operatorConfig(t)
	stranger := newKey(t, nkeys.CreateAccount)
	url := testnats.Start(t, testnats.Config(config)).URL()
	hour := time.Now().Add(time.Hour)
	wantAccess(t, "creds", connects(t, "nats.url", url, "nats.creds", credsFor(t, account, hour)), "")
	wantAccess(t, "of another account", connects(t, "nats.url", url, "nats.creds", credsFor(t, stranger, hour)), "refuses these credentials")
	wantAccess(t, "expired", connects(t, "nats.url", url, "nats.creds", credsFor(t, account, time.Now().Add(-time.Hour))), "refuses these credentials")
	wantAccess(t, "none", connects(t, "nats.url", url), "refuses these credentials")
}

// natsTLS is a server that wants certificates of p's from its clients.
func natsTLS(t *testing.T, p *pki, more string) string {
	t.Helper()
	cert, key := p.issue("nats", 10)
	srv := testnats.Start(t, testnats.Config(fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n%s", cert, key, p.ca, more)))
	return srv.URL()
}

func TestNATSWithTLS(t *testing.T) {
	p, foreign := newPKI(t), newPKI(t)
	url := natsTLS(t, p, "")
	cert, key := p.issue("client", 11)
	otherCert, otherKey := foreign.issue("client", 12)
	wantAccess(t, "certificate", connects(t, "nats.url", url, "nats.ca", p.ca, "nats.cert", cert, "nats.key", key), "")
	wantAccess(t, "unknown authority", connects(t, "nats.url", url, "nats.ca", foreign.ca, "nats.cert", cert, "nats.key", key), "nats.ca")
	wantAccess(t, "no certificate", connects(t, "nats.url", url, "nats.ca", p.ca), "nats.cert and nats.key")
	wantAccess(t, "foreign certificate", connects(t, "nats.url", url, "nats.ca", p.ca, "nats.cert", otherCert, "nats.key", otherKey), "nats.cert and nats.key")
}

// freePort is one that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// redisTLS is a server that takes TLS alone, with certificates of p's, and users.
func redisTLS(t *testing.T, p *pki) (server *testredis.Server, tlsURL string) {
	t.Helper()
	cert, key := p.issue("redis", 20)
	port := freePort(t)
	server = testredis.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", p.ca, "--tls-auth-clients", "yes")
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	if err := c.Do(t.Context(), "acl", "setuser", "bob", "reset", "on", ">pass word", "~delay:*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	return server, "rediss://127.0.0.1:" + port
}

func TestRedisWithTLSAndUser(t *testing.T) {
	t.Parallel()
	p, foreign := newPKI(t), newPKI(t)
	_, url := redisTLS(t, p)
	cert, key := p.issue("client", 21)
	password := secretFile(t, "password", "pass word\n")
	base := []string{"redis.url", url, "redis.ca", p.ca, "redis.cert", cert, "redis.key", key}
	for _, tt := range []struct {
		kv          []string
		level, text string
	}{
		{[]string{"redis.user", "bob", "redis.password", "pass word"}, levelOK, "PING"},
		{[]string{"redis.user", "bob", "redis.password_file", password}, levelOK, "PING"},
		{[]string{"redis.url", strings.Replace(url, "//", "//bob:pass%20word@", 1)}, levelOK, "PING"},
		{[]string{"redis.url", strings.Replace(url, "//", "//bob@", 1), "redis.password_file", password}, levelOK, "PING"},
		{[]string{"redis.user", "bob", "redis.password", "hunter2"}, levelProblem, "redis.password"},
		{[]string{"redis.user", "eve", "redis.password", "pass word"}, levelProblem, "redis.user"},
		{[]string{"redis.ca", foreign.ca}, levelProblem, "redis.ca"},
		{[]string{"redis.url", strings.Replace(url, "rediss", "redis", 1), "redis.ca", "", "redis.cert", "", "redis.key", ""}, levelProblem, "rediss://"},
	} {
		kv := append(append([]string{}, base...), tt.kv...)
		src := keyValues(kv...)
		for name, v := range src {
			if v.items[0] == "" {
				delete(src, name)
			}
		}
		cfg, err := loadConfig(src, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := &doctor{cfg: &cfg}
		d.lookAtRedis(t.Context())
		d.want(t, "redis.connection", tt.level, tt.text)
	}
	for _, tt := range []struct {
		kv  []string
		err string
	}{
		{[]string{"redis.url", "redis://u:p@h", "redis.password", "q"}, "the URL has a password"},
		{[]string{"redis.url", "redis://u@h", "redis.user", "v", "redis.password", "q"}, "the URL has a user"},
		{[]string{"redis.url", "redis://h", "redis.user", "v"}, "redis.user: needs"},
		{[]string{"redis.url", "redis://h", "redis.password", "q", "redis.password_file", password}, "both are set"},
		{[]string{"redis.url", "redis://h", "redis.ca", p.ca}, "rediss://"},
		{[]string{"redis.url", "rediss://h", "redis.cert", cert}, "redis.cert, redis.key"},
	} {
		_, err := loadConfig(keyValues(tt.kv...), nil)
		wantAccess(t, fmt.Sprint(tt.kv), err, tt.err)
	}
}

// TestServeOverTLS puts a job through a bridge all of whose connections are
// encrypted and ask who is there; then Redis gets another password.
func TestServeOverTLS(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	natsURL := natsTLS(t, p, "authorization { user: u, password: p }")
	server, redisURL := redisTLS(t, p)
	cert, key := p.issue("client", 30)
	password := secretFile(t, "password", "pass word\n")
	toNATS := []string{"--nats-url", natsURL, "--nats-user", "u", "--nats-password", "p", "--nats-ca", p.ca, "--nats-cert", cert, "--nats-key", key}
	bridge := start(t, append([]string{
		"serve", "--id", "one", "--http-addr", "127.0.0.1:0", "--http-cert", cert, "--http-key", key, "--redis-url", redisURL,
		"--redis-user", "bob", "--redis-password-file", password, "--redis-ca", p.ca, "--redis-cert", cert, "--redis-key", key,
	}, toNATS...)...)
	at := bridge.ready()
	if at["mode"] != "redis" || !strings.HasPrefix(at["http"], "https://") {
		t.Errorf("ready with %v", at)
	}
	r := run(t, append(append([]string{"put"}, toNATS...), "--in", "1h", "orders.x", "hello")...)
	if r.code != 0 || !strings.Contains(r.out, "stored redis") {
		t.Errorf("put: exit %d, %s%s", r.code, r.out, r.err)
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	if err := os.WriteFile(password, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]any{{"acl", "setuser", "bob", "resetpass", ">another"}, {"client", "kill", "type", "normal", "skipme", "yes"}} {
		if err := c.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); ; { // on a busy machine it may be on the disk first
		r = run(t, append(append([]string{"put"}, toNATS...), "--in", "1h", "orders.x", "hello")...)
		if r.code == 0 && strings.Contains(r.out, "stored redis") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("put with the new password: exit %d, %s%s", r.code, r.out, r.err)
		}
	}
}
