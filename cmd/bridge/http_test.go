package main

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func serveHTTP(t *testing.T, c httpConfig, log *slog.Logger) *health {
	t.Helper()
	c.addr = "127.0.0.1:0"
	h, err := startHealth(&c, prometheus.NewRegistry(), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.stop)
	return h
}

// fetch gets a page on a connection of its own.
func fetch(t *testing.T, url string, c *tls.Config) (code int, body string, served *tls.ConnectionState) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.TLS
}

func TestHTTPStaysOnThisMachine(t *testing.T) {
	p := newPKI(t)
	cert, key := p.issue("server", 2)
	for _, tt := range []struct {
		kv  []string
		err string // in the error; empty: none
	}{
		{[]string{"http.addr", "127.0.0.1:8090"}, ""},
		{[]string{"http.addr", "localhost:8090"}, ""},
		{[]string{"http.addr", "[::1]:8090"}, ""},
		{[]string{"http.addr", "off"}, ""},
		{[]string{"http.addr", ":8090"}, "http.insecure"},
		{[]string{"http.addr", "0.0.0.0:8090"}, "http.insecure"},
		{[]string{"http.addr", "[::]:8090"}, "http.cert"},
		{[]string{"http.addr", "10.1.2.3:8090"}, "http.insecure"},
		{[]string{"http.addr", "bridge.example:8090"}, "http.insecure"},
		{[]string{"http.addr", ":8090", "http.insecure", "true"}, ""},
		{[]string{"http.addr", ":8090", "http.cert", cert, "http.key", key}, ""},
		{[]string{"http.addr", ":8090", "http.cert", cert}, "http.key"},
		{[]string{"http.client_ca", p.ca}, "http.client_ca"},
		{[]string{"http.insecure", "perhaps"}, `"perhaps" is not true or false`},
	} {
		_, err := loadConfig(keyValues(tt.kv...), nil)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: %v, want %q", tt.kv, err, tt.err)
		}
	}
}

// TestStartupDoesNotWaitForNATS: a probe that did would have bridges killed that wait.
func TestStartupDoesNotWaitForNATS(t *testing.T) {
	h := serveHTTP(t, httpConfig{}, slog.Default())
	if code, body, _ := fetch(t, h.url()+"/startupz", nil); code != 503 || !strings.Contains(body, "log") {
		t.Errorf("/startupz before the log is read: %d %s", code, body)
	}
	h.setOpened()
	if code, _, _ := fetch(t, h.url()+"/startupz", nil); code != 200 {
		t.Errorf("/startupz: %d", code)
	}
	if code, body, _ := fetch(t, h.url()+"/readyz", nil); code != 503 || !strings.Contains(body, "starting") {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

func TestPprofIsOffUnlessAskedFor(t *testing.T) {
	off, on := serveHTTP(t, httpConfig{}, slog.Default()), serveHTTP(t, httpConfig{pprof: true}, slog.Default())
	if code, _, _ := fetch(t, off.url()+"/debug/pprof/goroutine?debug=1", nil); code != 404 {
		t.Errorf("off: %d", code)
	}
	if code, body, _ := fetch(t, on.url()+"/debug/pprof/goroutine?debug=1", nil); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("on: %d %s", code, body)
	}
	// It would show passwords among the flags.
	if code, body, _ := fetch(t, on.url()+"/debug/pprof/cmdline", nil); code != 404 {
		t.Errorf("command line: %d %s", code, body)
	}
}

func TestHTTPWithTLS(t *testing.T) {
	p := newPKI(t)
	cert, key := p.issue("server", 2)
	log := &syncBuffer{hit: make(chan struct{}, 1)}
	h := serveHTTP(t, httpConfig{cert: cert, key: key}, slog.New(slog.NewTextHandler(log, nil)))
	trust := &tls.Config{RootCAs: p.pool()}
	serial := func() int64 {
		t.Helper()
		code, _, served := fetch(t, h.url()+"/healthz", trust)
		if code != 200 {
			t.Fatalf("/healthz: %d", code)
		}
		return served.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); !strings.HasPrefix(h.url(), "https://") || got != 2 {
		t.Errorf("%s: certificate %d", h.url(), got)
	}
	if code, _, _ := fetch(t, "http"+strings.TrimPrefix(h.url(), "https")+"/healthz", nil); code != 400 {
		t.Errorf("in plaintext: %d", code)
	}
	p.issue("server", 3)
	if got := serial(); got != 3 {
		t.Errorf("after the files changed: certificate %d", got)
	}
	p.write("server.pem", "NONSENSE", nil)
	if got := serial(); got != 3 || !strings.Contains(log.String(), "certificate not reloaded") {
		t.Errorf("with an unreadable file: certificate %d, log %s", got, log)
	}
	old := &tls.Config{RootCAs: p.pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	if conn, err := tls.Dial("tcp", h.listener.Addr().String(), old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is accepted")
	}
	if _, err := startHealth(&httpConfig{addr: "127.0.0.1:0", cert: cert, key: key}, prometheus.NewRegistry(), slog.Default()); err == nil || !strings.Contains(err.Error(), "http.cert") {
		t.Errorf("start with an unreadable certificate: %v", err)
	}
}

// TestProbesNeedNoClientCertificate: a kubelet has none.
func TestProbesNeedNoClientCertificate(t *testing.T) {
	p, foreign := newPKI(t), newPKI(t)
	cert, key := p.issue("server", 2)
	h := serveHTTP(t, httpConfig{cert: cert, key: key, clientCA: p.ca, pprof: true}, slog.Default())
	none := &tls.Config{RootCAs: p.pool()}
	known := &tls.Config{RootCAs: p.pool(), Certificates: []tls.Certificate{p.load(p.issue("scraper", 4))}}
	unknown := &tls.Config{RootCAs: p.pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair := foreign.load(foreign.issue("scraper", 5))
		return &pair, nil
	}}
	for _, tt := range []struct {
		path string
		c    *tls.Config
		code int
	}{
		{"/healthz", none, 200}, {"/startupz", none, 503}, {"/readyz", none, 503}, {"/metrics", none, 403}, {"/debug/pprof/", none, 403}, {"/nowhere", none, 403},
		{"/healthz/../metrics", none, 403}, {"/metrics", known, 200}, {"/debug/pprof/", known, 200}, {"/nowhere", known, 404},
	} {
		if code, body, _ := fetch(t, h.url()+tt.path, tt.c); code != tt.code {
			t.Errorf("%s: %d %s, want %d", tt.path, code, body, tt.code)
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: unknown, DisableKeepAlives: true}}
	if resp, err := client.Get(h.url() + "/metrics"); err == nil {
		resp.Body.Close()
		t.Errorf("with a certificate of another authority: %d", resp.StatusCode)
	}
}

func TestHTTPBoundsWhatClientsHold(t *testing.T) {
	h := serveHTTP(t, httpConfig{}, slog.Default())
	s := h.server
	for name, d := range map[string]time.Duration{"header": s.ReadHeaderTimeout, "read": s.ReadTimeout, "write": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s timeout: %v", name, d)
		}
	}
	req, err := http.NewRequest("GET", h.url()+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe") {
			return // refused before all of it was sent
		}
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("headers of 64 KiB: %d", resp.StatusCode)
	}
	post, err := http.Post(h.url()+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	post.Body.Close()
	if post.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", post.StatusCode)
	}
}
