// Package testproxy is a TCP proxy between a client and a Redis server that
// makes the faults that a network makes: replies that get lost after the
// server has acted, connections that are cut, and silence.
package testproxy

import (
	"errors"
	"net"
	"sync"
	"testing"
)

// Match chooses commands, given as their arguments.
type Match func(args []string) bool

// Proxy forwards connections to one server. Its methods are safe for
// concurrent use.
type Proxy struct {
	backend  string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	links   map[*link]struct{}
	drop    Match
	drops   int // replies still to drop
	dropped int
	observe func(args []string)
	stalled chan struct{} // closed when the stall ends; nil: none
	present Disturbance
}

// Start runs a proxy to backend (host:port) until the test ends.
func Start(t testing.TB, backend string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testproxy: no free port: %v", err)
	}
	p := &Proxy{backend: backend, listener: l, links: map[*link]struct{}{}}
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.Close)
	return p
}

// Addr is the proxy's host and port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is the proxy's redis:// address.
func (p *Proxy) URL() string { return "redis://" + p.Addr() + "/0" }

// DropReplies lets the next n commands that match reach the server, but cuts
// their connections instead of passing the replies on.
func (p *Proxy) DropReplies(n int, match Match) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops, p.drop, p.dropped = n, match, 0
}

// Dropped is how many replies were dropped since DropReplies.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Observe calls f with every command that passes; nil ends it.
func (p *Proxy) Observe(f func(args []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = f
}

// Stall holds back whatever arrives from either side until Resume.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled == nil {
		p.stalled = make(chan struct{})
	}
}

// Resume ends a stall.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
}

// Cut closes all connections; new ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Resume()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		server, err := net.Dial("tcp", p.backend)
		if err != nil {
			_ = client.Close() // as if the server had refused it
			continue
		}
		p.link(&link{proxy: p, client: client, server: server})
	}
}

func (p *Proxy) link(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.close()
		return
	}
	p.links[l] = struct{}{}
	p.wg.Add(2)
	go l.run(l.commands)
	go l.run(l.replies)
}

func (p *Proxy) unlink(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pass waits out a stall.
func (p *Proxy) pass() {
	p.mu.Lock()
	s := p.stalled
	p.mu.Unlock()
	if s != nil {
		<-s
	}
}

// command notes a command and says what it gets.
func (p *Proxy) command(args []string) (to reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.observe != nil {
		p.observe(args)
	}
	if p.drops > 0 && p.drop(args) {
		p.drops--
		p.dropped++
		to.drop = true
	}
	if !opens(args) {
		to.refusal = p.present.Refuse
	}
	return to
}
