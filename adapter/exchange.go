package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

const (
	// statePeriod is how often a bridge tells its state without a change.
	statePeriod = time.Second
	// stateAckTimeout is how long peers may take to acknowledge a change before
	// it is sent again, stateTries how often it is sent.
	stateAckTimeout = 200 * time.Millisecond
	stateTries      = 3
	// canaryTimeout bounds a question to the peers, and each one's own write.
	canaryTimeout = 200 * time.Millisecond
)

// exchange is what bridges tell each other about the store that they share, so
// that one which alone has lost it steps back. What a peer says never changes
// this bridge's mode; it may prompt a look.
type exchange struct {
	b         *Bridge
	store     moded // nil: it has no modes, and nothing is exchanged
	peers     *states
	version   int64 // of the last state sent; only the loop uses it
	kick      chan struct{}
	work      sync.WaitGroup // answers to peers under way
	subs      []*nats.Subscription
	isolated  atomic.Bool        // peers reach the store and this bridge does not
	away      bool               // it has left the intake queue group; only the loop uses it
	near      []string           // the peers that lived when it looked last; only the loop uses it
	owners    *nats.Subscription // to what peers give workers, while there are peers; likewise
	settledIn atomic.Bool        // it has listened for so long that it knows its peers
}

func newExchange(b *Bridge) *exchange {
	x := &exchange{b: b, peers: newStates(b.cfg.ID), kick: make(chan struct{}, 1)}
	x.store, _ = b.store.(moded)
	return x
}

// changed makes the loop tell the peers at once.
func (x *exchange) changed() { wake(x.kick) }

// run tells the peers this bridge's state and listens to theirs, until ctx is
// done.
func (x *exchange) run(ctx context.Context) {
	if x.store == nil {
		return
	}
	x.listen()
	defer x.close()
	tick := time.NewTicker(statePeriod)
	defer tick.Stop()
	begin := time.Now()
	told := job.Mode(-1)
	for {
		mode := x.store.Mode()
		x.tell(ctx, mode, mode != told)
		told = mode
		x.stepBack(ctx, mode)
		x.watchPeers(time.Since(begin))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-x.kick:
		}
	}
}

// watchPeers listens to what peers give workers while there are any, and has the
// jobs of those that are gone looked after.
func (x *exchange) watchPeers(listened time.Duration) {
	live := x.peers.live(time.Now())
	lost := slices.ContainsFunc(x.near, func(id string) bool { return !slices.Contains(live, id) })
	if first := listened > peerLife && !x.settledIn.Swap(listened > peerLife); first || lost {
		wake(x.b.reconstruct)
	}
	switch {
	case len(live) > 0 && x.owners == nil:
		s, err := x.b.out.Subscribe(subjects.WorkerWildcard(x.b.cfg.Prefix, subjects.KindOwner), x.b.heardOwner)
		if err != nil {
			x.b.cfg.Logger.Error("subscription to the owners of jobs failed", "error", err)
		}
		x.owners = s
	case len(live) == 0 && x.owners != nil:
		_ = x.owners.Unsubscribe() // fails only when the connection is closed
		x.owners = nil
	}
	x.near = live
}

func (x *exchange) listen() {
	for subject, f := range map[string]nats.MsgHandler{
		subjects.State(x.b.cfg.Prefix): x.heard, subjects.Canary(x.b.cfg.Prefix): x.asked,
	} {
		s, err := x.b.out.Subscribe(subject, f)
		if err != nil {
			x.b.cfg.Logger.Error("subscription for the state of peers failed", "subject", subject, "error", err)
			continue
		}
		x.subs = append(x.subs, s)
	}
	_ = x.b.out.FlushTimeout(x.b.cfg.StoreTimeout) // when it fails the connection is gone, and makes up for it
}

func (x *exchange) close() {
	if x.owners != nil {
		x.subs = append(x.subs, x.owners)
	}
	for _, s := range x.subs {
		_ = s.Unsubscribe() // fails only when the connection is closed
	}
	x.work.Wait()
}

// tell publishes this bridge's state. A change is sent until every live peer has
// acknowledged it, but no more than stateTries times: the next one comes soon.
func (x *exchange) tell(ctx context.Context, mode job.Mode, change bool) {
	now := x.b.cfg.Now()
	if change {
		x.version = max(x.version+1, now.UnixMicro())
	}
	data, _ := json.Marshal(bridgeState{x.b.cfg.ID, mode.Circuit(), x.version, now.UnixMilli()}) // strings and numbers cannot fail
	missing := x.peers.live(time.Now())
	if !change || len(missing) == 0 {
		x.publish(subjects.State(x.b.cfg.Prefix), "", data)
		return
	}
	for range stateTries {
		if missing = x.ask(ctx, data, missing); len(missing) == 0 || ctx.Err() != nil {
			return
		}
	}
	x.b.cfg.Logger.Warn("peers have not acknowledged a change of state", "peers", missing, "circuit_state", mode.Circuit())
}

// ask sends a state once and returns those of peers that did not acknowledge it.
func (x *exchange) ask(ctx context.Context, data []byte, peers []string) (missing []string) {
	ctx, cancel := context.WithTimeout(ctx, stateAckTimeout)
	defer cancel()
	left := map[string]bool{}
	for _, p := range peers {
		left[p] = true
	}
	x.replies(ctx, subjects.State(x.b.cfg.Prefix), data, func(m *nats.Msg) bool {
		var a stateAck
		if json.Unmarshal(m.Data, &a) == nil && a.Version == x.version {
			delete(left, a.Bridge)
		}
		return len(left) == 0
	})
	for p := range left {
		missing = append(missing, p)
	}
	return missing
}

// replies publishes data with a reply subject and hands what comes back to each,
// until that returns true or ctx is done.
func (x *exchange) replies(ctx context.Context, subject string, data []byte, each func(*nats.Msg) bool) {
	inbox := x.b.out.NewRespInbox()
	s, err := x.b.out.SubscribeSync(inbox)
	if err != nil {
		return // the connection is closed
	}
	defer func() { _ = s.Unsubscribe() }() // fails only when the connection is closed
	x.publish(subject, inbox, data)
	for {
		m, err := s.NextMsgWithContext(ctx)
		if err != nil || each(m) {
			return
		}
	}
}

func (x *exchange) publish(subject, reply string, data []byte) {
	if err := x.b.out.PublishRequest(subject, reply, data); err != nil {
		x.b.log.reply.Log(x.b.cfg.Logger, "state not told to peers", "subject", subject, "error", err)
	}
}

// heard takes in the state of a peer and acknowledges it.
func (x *exchange) heard(m *nats.Msg) {
	var s bridgeState
	if json.Unmarshal(m.Data, &s) != nil || subjects.CheckBridgeID(s.Bridge) != nil || s.Bridge == x.b.cfg.ID {
		return
	}
	newer := x.peers.learn(s, time.Now())
	if newer && s.CircuitState == job.ModeRedis.Circuit() && x.store.Mode() == job.ModeLocal {
		x.store.ProbeSoon()
	}
	if reply := x.b.replySubject(m.Reply); reply != "" {
		data, _ := json.Marshal(stateAck{x.b.cfg.ID, s.Version}) // strings and numbers cannot fail
		x.b.respond(x.b.out, reply, data)
	}
}

// asked answers a peer that has lost the store, if this bridge reaches it.
func (x *exchange) asked(m *nats.Msg) {
	reply := x.b.replySubject(m.Reply)
	if string(m.Data) == x.b.cfg.ID || reply == "" || x.b.cfg.Canary == nil {
		return
	}
	x.work.Go(func() { // the write must not block the connection's callbacks
		ctx, cancel := context.WithTimeout(context.Background(), canaryTimeout)
		defer cancel()
		if x.b.cfg.Canary(ctx) == nil {
			x.b.respond(x.b.out, reply, []byte(x.b.cfg.ID))
		}
	})
}

// stepBack leaves the intake to the peers while they reach the store and this
// bridge does not, and takes part again when it does, or they do not either.
func (x *exchange) stepBack(ctx context.Context, mode job.Mode) {
	isolated := mode == job.ModeLocal && x.Reachable(ctx)
	x.isolated.Store(isolated)
	if isolated == x.away || ctx.Err() != nil {
		return
	}
	if isolated {
		x.b.cfg.Logger.Warn("only this bridge has lost the store: jobs are left to its peers")
		x.b.intake.leave()
	} else if err := x.b.intake.subscribe(); err != nil {
		x.b.cfg.Logger.Error("intake not taken up again", "error", errors.Join(err, ctx.Err()))
		return
	}
	x.away = isolated
}

// Reachable reports whether a live peer has written to the shared store just
// now.
func (x *exchange) Reachable(ctx context.Context) (yes bool) {
	if len(x.peers.live(time.Now())) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	x.replies(ctx, subjects.Canary(x.b.cfg.Prefix), []byte(x.b.cfg.ID), func(*nats.Msg) bool { yes = true; return true })
	x.isolated.Store(yes && x.store.Mode() == job.ModeLocal)
	return yes
}

// Fires reports whether this bridge, of all live ones, delivers the job while
// none reaches the shared store.
func (x *exchange) Fires(id string) bool {
	return !x.isolated.Load() && x.peers.owner(id) == x.b.cfg.ID
}

// Settled reports whether no live peer is without the shared store.
func (x *exchange) Settled() bool { return x.peers.settled(time.Now()) }

// isLive reports whether the bridge of that id was heard of lately, or may not
// have been heard yet.
func (x *exchange) isLive(id string) bool {
	return x.peers.isLive(id) || x.store != nil && !x.settledIn.Load()
}

// mine reports whether, of all live bridges, this one is to look after the job.
func (x *exchange) mine(id string) bool { return x.peers.owner(id) == x.b.cfg.ID }

// nothingHidden reports whether no bridge may hold jobs that this one cannot see.
// One that is gone may be hiding them still.
func (x *exchange) nothingHidden() bool { return x.store == nil || x.peers.allClosed() }

// Alone reports whether this bridge has been the only one for a while.
func (x *exchange) Alone() bool { return x.peers.alone(time.Now()) }

// Peers is what a bridge knows of the others that share its store.
type Peers interface {
	Reachable(ctx context.Context) bool
	Fires(id string) bool
	Settled() bool
	Alone() bool
}

// Peers is for a store that degrades; adapter/failover asks for it in this form.
func (b *Bridge) Peers() Peers { return b.exchange }
