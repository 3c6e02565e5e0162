package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of what a client of the HTTP server can hold. A page that streams
// extends its own deadlines with http.ResponseController.
const (
	httpHeaderTimeout = 5 * time.Second
	httpReadTimeout   = 10 * time.Second
	httpWriteTimeout  = time.Minute // longer than a CPU profile
	httpIdleTimeout   = time.Minute
	httpHeaderBytes   = 16 << 10
	httpStopTimeout   = time.Second
)

// health serves /healthz, /startupz, /readyz, /metrics and, if asked to, /debug/pprof/.
type health struct {
	listener net.Listener
	scheme   string
	server   *http.Server
	done     chan struct{}
	opened   atomic.Bool                            // the store is open: what its log holds has been read
	ready    atomic.Pointer[func() (string, error)] // says in which mode, or why not; nil: starting
}

var errStarting = errors.New("starting")

// startHealth listens where c says. With an empty address it returns nil, on which
// all methods do nothing.
func startHealth(c *httpConfig, reg *prometheus.Registry, log *slog.Logger) (*health, error) {
	if c.addr == "" {
		return nil, nil
	}
	h := &health{scheme: "http", done: make(chan struct{})}
	handler := http.Handler(h.pages(c, reg))
	var files *tlsFiles
	if c.cert != "" {
		var err error
		if files, err = newTLSFiles(c, log); err != nil {
			return nil, &inputError{err: err}
		}
		h.scheme = "https"
		if c.clientCA != "" {
			handler = demandClientCert(handler)
		}
	}
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		return nil, fmt.Errorf("http.addr: cannot listen on %s: %w; choose another address with --http-addr (port 0: a free one, off: none)", c.addr, err)
	}
	h.listener = l
	if files != nil {
		l = tls.NewListener(l, files.serverConfig())
	}
	h.server = &http.Server{
		Handler: handler, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: httpHeaderTimeout, ReadTimeout: httpReadTimeout, WriteTimeout: httpWriteTimeout,
		IdleTimeout: httpIdleTimeout, MaxHeaderBytes: httpHeaderBytes,
	}
	go func() {
		defer close(h.done)
		_ = h.server.Serve(l) // ends with ErrServerClosed
	}()
	return h, nil
}

// pages is all that is served, one registration per page.
func (h *health) pages(c *httpConfig, reg *prometheus.Registry) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /startupz", h.startupz)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, EnableOpenMetrics: true}))
	if c.pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		// No cmdline: a flag may be a password.
	}
	return mux
}

// demandClientCert lets only clients with a certificate see more than the probes,
// which a kubelet makes without one. The TLS layer has verified it.
func demandClientCert(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		probe := []string{"/healthz", "/startupz", "/readyz"}
		if !slices.Contains(probe, r.URL.Path) && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			http.Error(w, "a client certificate signed by http.client_ca is needed", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// startupz is 200 once the log has been replayed, which takes the longer the more is
// in it. It does not wait for NATS, as /readyz does.
func (h *health) startupz(w http.ResponseWriter, _ *http.Request) {
	if !h.opened.Load() {
		http.Error(w, "not started: reading the log", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "started")
}

func (h *health) readyz(w http.ResponseWriter, _ *http.Request) {
	mode, err := "", errStarting
	if check := h.ready.Load(); check != nil {
		mode, err = (*check)()
	}
	if err != nil {
		http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready, mode "+mode)
}

// setOpened makes /startupz answer 200.
func (h *health) setOpened() {
	if h != nil {
		h.opened.Store(true)
	}
}

// setReady makes check the answer of /readyz.
func (h *health) setReady(check func() (string, error)) {
	if h != nil {
		h.ready.Store(&check)
	}
}

// url is where it is served, "off" if nowhere.
func (h *health) url() string {
	if h == nil {
		return "off"
	}
	return h.scheme + "://" + h.listener.Addr().String()
}

func (h *health) stop() {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpStopTimeout)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		_ = h.server.Close() // ends what a client keeps open; nothing is lost
	}
	<-h.done
}

// isLoopback reports whether only this machine reaches addr, a host and port.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}
