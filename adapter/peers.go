package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

const (
	// presenceTimeout is how long a starting bridge waits for another one of
	// its id to answer.
	presenceTimeout = 500 * time.Millisecond
	// takeoverTimeout is how long a stopping bridge waits for a peer.
	takeoverTimeout = time.Second
	takeoverGroup   = "delaybridge-takeover"
)

// peers is what a bridge has to do with the other bridges of its prefix: it
// makes sure that its id is its own, and serves the acknowledgements of a
// peer that stops.
//
// A stopping bridge asks for a takeover; one peer subscribes to its
// acknowledgement subject, and answers when the server knows. Any bridge can
// settle any delivery, so the two may overlap. The peer lets go when a bridge
// with that id starts again.
type peers struct {
	b      *Bridge
	taking sync.WaitGroup
	mu     sync.Mutex
	subs   []*nats.Subscription
	for_   map[string]*nats.Subscription // acknowledgement subjects served for peers, by bridge id
}

func newPeers(b *Bridge) *peers { return &peers{b: b, for_: make(map[string]*nats.Subscription)} }

// claimID fails when a bridge of this id answers.
func (p *peers) claimID(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, presenceTimeout)
	defer cancel()
	id := p.b.cfg.ID
	_, err := p.b.out.RequestWithContext(ctx, subjects.Presence(p.b.cfg.Prefix, id), nil)
	switch {
	case err == nil:
		return fmt.Errorf("%w: a bridge with the id %q is running on this NATS system; give this one another --id", ErrIDInUse, id)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return nil
	}
	return fmt.Errorf("ask for bridges with the id %q: %w", id, err)
}

// serve subscribes to the acknowledgements of the bridge with that id. It is
// a plain subscription on the dispatching connection: only there does the
// server report that nobody subscribes to a target.
func (p *peers) serve(id string) (*nats.Subscription, error) {
	s, err := p.b.out.Subscribe(subjects.AckWildcard(p.b.cfg.Prefix, id), p.b.settler.ack)
	if err != nil {
		return nil, err
	}
	// The callback only appends, so nothing waits here for long.
	if err := s.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	return s, p.b.out.FlushTimeout(p.b.cfg.StoreTimeout)
}

// listen answers for this bridge's presence, and to peers that stop or start.
func (p *peers) listen() {
	prefix, id := p.b.cfg.Prefix, p.b.cfg.ID
	p.subscribe(func() (*nats.Subscription, error) {
		return p.b.out.Subscribe(subjects.Presence(prefix, id), func(m *nats.Msg) { p.b.respond(p.b.out, m.Reply, []byte(id)) })
	})
	p.subscribe(func() (*nats.Subscription, error) {
		return p.b.out.QueueSubscribe(subjects.Takeover(prefix), takeoverGroup, p.takeOver)
	})
	p.subscribe(func() (*nats.Subscription, error) {
		return p.b.out.Subscribe(subjects.Started(prefix), p.letGo)
	})
	_ = p.b.out.Publish(subjects.Started(prefix), []byte(id)) // lost only with the connection, and then peers overlap, which is harmless
	// Whoever sees this bridge ready can rely on its presence and its help.
	_ = p.b.out.FlushTimeout(p.b.cfg.StoreTimeout)
}

func (p *peers) subscribe(sub func() (*nats.Subscription, error)) {
	s, err := sub()
	if err != nil {
		p.b.cfg.Logger.Error("subscription for peers failed", "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = append(p.subs, s)
}

// stopListening lets the bridge's id go and refuses further takeovers.
func (p *peers) stopListening() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		_ = s.Unsubscribe() // fails only when the connection is closed
	}
	p.subs = nil
}

// close ends what is served for peers.
func (p *peers) close() {
	p.taking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.for_ {
		_ = s.Unsubscribe() // fails only when the connection is closed
		delete(p.for_, id)
	}
}

// takeOver starts to serve the acknowledgements of a peer that stops.
func (p *peers) takeOver(m *nats.Msg) {
	id := string(m.Data)
	if subjects.CheckBridgeID(id) != nil || id == p.b.cfg.ID {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs == nil {
		return // this bridge stops as well
	}
	p.taking.Go(func() { // a flush must not block the connection's callbacks
		s, err := p.serve(id)
		if err != nil {
			p.b.cfg.Logger.Warn("acknowledgements of a stopping bridge not taken over", "bridge", id, "error", err)
			return
		}
		p.mu.Lock()
		if old := p.for_[id]; old != nil {
			_ = old.Unsubscribe() // fails only when the connection is closed
		}
		p.for_[id] = s
		p.mu.Unlock()
		p.b.cfg.Logger.Info("serving the acknowledgements of a bridge that stops", "bridge", id)
		p.b.respond(p.b.out, m.Reply, []byte(p.b.cfg.ID))
	})
}

// letGo ends the service for a bridge that has started again.
func (p *peers) letGo(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.for_[string(m.Data)]; s != nil {
		_ = s.Unsubscribe() // fails only when the connection is closed
		delete(p.for_, string(m.Data))
	}
}

// handOver asks a peer to serve the acknowledgements of the bridge with that id
// and reports whether one does.
func (p *peers) handOver(id string) bool {
	m, err := p.b.out.Request(subjects.Takeover(p.b.cfg.Prefix), []byte(id), takeoverTimeout)
	if err != nil {
		return false
	}
	p.b.cfg.Logger.Info("a peer serves the acknowledgements", "bridge", id, "peer", string(m.Data))
	return true
}

// handOverServed passes on what this bridge serves for others.
func (p *peers) handOverServed() {
	p.mu.Lock()
	ids := slices.Collect(maps.Keys(p.for_))
	p.mu.Unlock()
	for _, id := range ids {
		if !p.handOver(id) {
			return // nobody is left
		}
	}
}
