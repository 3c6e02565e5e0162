package integration

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes TCP connections on to a server until they are cut.
type relay struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	backend string                // of new connections
	links   map[net.Conn]struct{} // both ends of each
	closed  bool                  // new connections are cut at once
}

func startRelay(t *testing.T, backend string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, backend: backend, links: map[net.Conn]struct{}{}}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.cut()
		r.running.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.server())
		if err != nil || !r.add(near, far) {
			_ = near.Close()
			continue
		}
		r.running.Go(func() { r.pass(near, far) })
		r.running.Go(func() { r.pass(far, near) })
	}
}

func (r *relay) add(near, far net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = far.Close()
		return false
	}
	r.links[near], r.links[far] = struct{}{}, struct{}{}
	return true
}

func (r *relay) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from) // ends with either connection
	_, _ = from.Close(), to.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, from)
	delete(r.links, to)
}

// cut ends all connections, and new ones at once until open.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for c := range r.links {
		_ = c.Close()
	}
}

func (r *relay) server() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.backend
}

// lead makes new connections go to another server.
func (r *relay) lead(backend string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backend = backend
}

// open lets new connections pass.
func (r *relay) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = false
}
