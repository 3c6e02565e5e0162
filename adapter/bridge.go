package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// Bridge takes jobs in over NATS, keeps them in a store and delivers them when
// they are due.
type Bridge struct {
	cfg       Config
	store     job.Store
	storeByte byte
	in, out   *nats.Conn
	metrics   *metrics
	log       logs
	tracing   *tracing

	allow   atomic.Pointer[subjects.Matcher]
	limit   atomic.Int64 // ceiling of new lanes
	seq     atomic.Uint64
	ready   chan struct{}
	intake  *intake
	disp    *dispatcher
	settler *settler
	barrier *gather[*flight] // published, not yet confirmed
	peers   *peers

	exchange *exchange
	pauses   *pauses

	beats       chan *nats.Msg     // of workers
	questions   *gather[*question] // those to be answered
	signs       *gather[string]    // workers that pings do not reach
	byes        string             // how the subjects of farewells begin
	pongs       string             // subject under which workers answer them
	reconstruct chan struct{}      // set when all leases must be looked at
	started     job.Time

	fullEvents pace
	refusals   refusals
	trust      trust
}

// Conns are the two connections of a bridge: deliveries must not wait behind
// a flood of intake. Both must have been made with [ConnOptions].
type Conns struct {
	Intake   *nats.Conn
	Dispatch *nats.Conn
}

// ConnOptions are the options that a bridge needs of its connections: what
// cannot be sent now must fail now (the job is then still in the store), a
// connection is tried again for ever, and subjects are checked once, by the
// bridge.
func ConnOptions() []nats.Option {
	return []nats.Option{nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.SkipSubjectValidation()}
}

// stopGrace is how long after the drain time the store may take to settle what
// was acknowledged.
const stopGrace = 2 * time.Second

// ErrIDInUse means that another bridge with this id answers.
var ErrIDInUse = errors.New("bridge id in use")

// New makes a bridge. storeByte is what its tokens name the store by.
func New(cfg Config, conns Conns, store job.Store, storeByte byte) (*Bridge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	b := &Bridge{cfg: cfg, store: store, storeByte: storeByte, in: conns.Intake, out: conns.Dispatch, ready: make(chan struct{})}
	if err := b.Reload(cfg); err != nil {
		return nil, err
	}
	var err error
	if b.trust, err = newTrust(cfg); err != nil {
		return nil, err
	}
	if b.metrics, err = newMetrics(&b.cfg); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if b.disp, err = newDispatcher(cfg, b.now, func() int { return int(b.limit.Load()) }); err != nil {
		return nil, err
	}
	b.tracing = b.disp.tracing
	b.beats, b.questions, b.signs = make(chan *nats.Msg, beatQueue), newGather[*question](), newGather[string]()
	b.byes = subjects.Worker(cfg.Prefix, subjects.KindBye, "")
	b.pongs, b.reconstruct, b.started = conns.Dispatch.NewInbox(), make(chan struct{}, 1), b.now()
	wake(b.reconstruct)
	b.intake, b.settler, b.barrier, b.peers = newIntake(b), newSettler(), newGather[*flight](), newPeers(b)
	b.exchange, b.pauses = newExchange(b), newPauses(b)
	if s := b.exchange.store; s != nil {
		b.metrics.mode(s.Mode())
	}
	if err := b.cfg.Registerer.Register(newBridgeGauges(b)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return b, nil
}

// Reload applies what can change while the bridge runs: AllowTargets, and
// MaxInFlight for lanes that are made from now on.
func (b *Bridge) Reload(cfg Config) error {
	cfg = cfg.withDefaults()
	m, err := subjects.NewMatcher(cfg.AllowTargets)
	if err != nil {
		return fmt.Errorf("%s: %w", keyAllow, err)
	}
	if err := atLeastOne(cfg.MaxInFlight); err != nil {
		return fmt.Errorf("%s: %w", keyMaxInFlight, err)
	}
	b.allow.Store(&m)
	b.limit.Store(int64(cfg.MaxInFlight))
	return nil
}

// now is the time that due times are compared with: never ahead of the clock.
func (b *Bridge) now() job.Time { return job.Time(b.cfg.Now().UnixMicro()) }

// Ready is closed when the bridge takes jobs.
func (b *Bridge) Ready() <-chan struct{} { return b.ready }

// Run takes jobs in and delivers them until ctx is done, then stops in order:
//
//  1. the intake leaves its queue group, stores and answers what has arrived;
//  2. no more jobs are claimed or published; claimed ones go back;
//  3. acknowledgements are served until a peer takes them over, or nothing is
//     in flight, or Drain has passed;
//  4. what was acknowledged is settled.
//
// It returns nil after an orderly stop. No goroutine outlives it; connections
// and store stay open.
func (b *Bridge) Run(ctx context.Context) error {
	if err := b.peers.claimID(ctx); err != nil {
		return err
	}
	b.WatchErrors(b.in)
	b.WatchErrors(b.out)
	// work outlives ctx: it is ended in the order above.
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWork()
	dispatch, stopDispatch := context.WithCancel(work)
	defer stopDispatch()
	stopIntake, stopAcks, stopSettle := make(chan struct{}), make(chan struct{}), make(chan struct{})

	var intake, dispatching, acking, settling sync.WaitGroup
	settling.Go(func() { b.settleLoop(work, stopSettle) })
	acking.Go(func() { b.ackLoop(work, stopAcks) })
	endSettling := func() {
		close(stopAcks)
		acking.Wait()
		close(stopSettle)
		settling.Wait()
	}
	workers, err := b.listenWorkers()
	acks, ackErr := b.peers.serve(b.cfg.ID)
	pauses, pauseErr := b.pauses.listen()
	if err = cmp.Or(err, ackErr, pauseErr); err == nil {
		err = b.intake.subscribe()
	}
	if err != nil {
		stopWorkers(workers)
		if pauses != nil {
			_ = pauses.Unsubscribe()
		}
		endSettling()
		return fmt.Errorf("subscribe: %w", err)
	}
	intake.Go(func() { b.intake.run(work, stopIntake) })
	intake.Go(func() { b.intake.relieve(work, stopIntake) })
	b.pauses.start(ctx)
	for _, loop := range []func(context.Context){b.pauses.loop, b.claimLoop, b.fireLoop, b.barrierLoop, b.expireLoop, b.pruneLoop,
		b.beatLoop, b.answerLoop, b.ownerLoop, b.keysLoop, b.recoverLoop, b.countLoop} {
		dispatching.Go(func() { loop(dispatch) })
	}
	exchange, stopExchange := context.WithCancel(work)
	defer stopExchange()
	var exchanging sync.WaitGroup
	exchanging.Go(func() { b.exchange.run(exchange) })
	b.peers.listen()
	close(b.ready)
	<-ctx.Done()

	drained := time.NewTimer(b.cfg.Drain)
	defer drained.Stop()
	// A store that does not answer must not hold the stop up.
	defer time.AfterFunc(b.cfg.Drain+stopGrace, cancelWork).Stop()
	b.peers.stopListening()
	stopWorkers(workers)     // peers answer them
	_ = pauses.Unsubscribe() // fails only when the connection is closed
	stopExchange()
	exchanging.Wait() // it joins and leaves the intake
	b.intake.leave()
	close(stopIntake)
	intake.Wait()
	stopDispatch()
	dispatching.Wait()
	b.confirm(b.barrier.take(nil))
	b.settler.add(b.disp.giveBackUnsent()...)
	b.drainAcks(drained.C)
	b.endAcks(acks)
	endSettling()
	b.peers.close()
	return nil
}

// endAcks ends the subscription to acknowledgements and waits until all that
// the server sent before it knew are with the settler: later ones get the
// server's "no responders", and none is lost in between.
func (b *Bridge) endAcks(acks *nats.Subscription) {
	read := make(chan struct{})
	if acks.Drain() != nil || b.out.FlushTimeout(b.cfg.StoreTimeout) != nil || b.out.Barrier(func() { close(read) }) != nil {
		return // the connection is lost, and the subscription with it
	}
	select {
	case <-read:
	case <-time.After(b.cfg.StoreTimeout):
	}
}

// drainAcks serves acknowledgements until nothing is in flight, a peer serves
// them, or the drain time is over.
func (b *Bridge) drainAcks(end <-chan time.Time) {
	b.peers.handOverServed()
	if b.disp.inFlight() > 0 && b.peers.handOver(b.cfg.ID) {
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for b.disp.inFlight() > 0 {
		select {
		case <-tick.C:
		case <-end:
			b.cfg.Logger.Warn("stopped with deliveries in flight: their workers' acknowledgements are lost unless repeated, and the jobs will be delivered again",
				"deliveries", b.disp.inFlight())
			return
		}
	}
}

// giveBackUnsent ends what was claimed and not published.
func (d *dispatcher) giveBackUnsent() (out []settlement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.flights {
		if f.sent || f.gone {
			continue
		}
		d.drop(f)
		d.claimed--
		out = append(out, f.ending(job.Release, f.Next))
	}
	return out
}

// inFlight is the number of deliveries that this bridge still answers for.
func (d *dispatcher) inFlight() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.flights)
}

// refusalWindow is how old a publish may be that an asynchronous refusal is
// about.
const refusalWindow = 2 * time.Second

// refusedBy returns the deliveries to a worker that a refusal which just came can
// be about.
func (d *dispatcher) refusedBy(worker string) (fs []*flight) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[worker]
	if w == nil {
		return nil
	}
	for f := range w.flights {
		if f.direct && f.sent && at.sub(f.since) < refusalWindow {
			fs = append(fs, f)
		}
	}
	return fs
}

// refused returns the deliveries to target that a refusal which just came can
// be about.
func (d *dispatcher) refused(target string) (fs []*flight) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[target]
	if l == nil {
		return nil
	}
	for _, a := range l.win.order {
		if f := a.f; f.lane == l && !f.gone && at.sub(f.since) < refusalWindow {
			fs = append(fs, f)
		}
	}
	return fs
}
