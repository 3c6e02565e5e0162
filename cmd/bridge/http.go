package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// health serves /healthz, /readyz and /metrics.
type health struct {
	listener net.Listener
	server   *http.Server
	done     chan struct{}
	ready    atomic.Pointer[func() (string, error)] // says in which mode, or why not; nil: starting
}

var errStarting = errors.New("starting")

// startHealth listens on addr. With an empty addr it returns nil, on which all
// methods do nothing.
func startHealth(addr string, reg *prometheus.Registry) (*health, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http.addr: cannot listen on %s: %w; choose another address with --http-addr (port 0: a free one, off: none)", addr, err)
	}
	h := &health{listener: l, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(h.done)
		_ = h.server.Serve(l) // ends with ErrServerClosed
	}()
	return h, nil
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
	return "http://" + h.listener.Addr().String()
}

func (h *health) stop() {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		_ = h.server.Close() // ends what a client keeps open; nothing is lost
	}
	<-h.done
}
