package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Handler runs one job. Its error decides what becomes of the job, see the
// package comment.
type Handler func(ctx context.Context, j *Job) error

// Worker runs the jobs of some targets. It is made by New and run once.
type Worker struct {
	nc      *nats.Conn
	cfg     Config
	log     *slog.Logger
	handler Handler // with its middleware
	inbox   string  // answers arrive below it
	began   time.Time

	patience patience

	beatMu     sync.Mutex // one beat or farewell at a time, in order; before mu
	beatBuf    []byte
	beatHead   string // the part of a heartbeat that never changes
	beatHeader nats.Header
	beatFrame  int // bytes of a heartbeat beside its tokens, at most
	claimBody  []byte

	kick    chan struct{} // the keeper has something to do before its timer
	changed chan struct{} // fewer handlers run or outcomes wait, while draining
	byeDone chan struct{} // a farewell was answered
	closed  chan struct{} // the connection is closed for good
	known   chan struct{} // the first heartbeat was answered, if only by the server
	meet    func()        // closes known

	lasting []*nats.Subscription // kept to the end

	mu        sync.Mutex
	phase     phase
	directed  bool // bridges may send jobs to the worker's own subject
	jobs      []*nats.Subscription
	base      context.Context
	cancelAll context.CancelCauseFunc
	ledger    ledger
	arrived   fifo // deliveries through the queue group, not claimed yet
	ready     fifo // waits for a free handler
	roomy     sync.Cond
	claiming  int
	lastClaim time.Duration // when the last claim was sent
	active    int           // goroutines that run handlers
	starting  int           // of these, those that have not got their first job yet
	running   int           // handlers
	settling  int           // outcomes not answered yet
	schedule  schedule
	stats     Stats
}

// Stats counts what a worker did since it started, and what it has now.
type Stats struct {
	Running, Waiting, Unconfirmed     int
	Done, Retried, Discarded, Snoozed uint64 // by what handlers returned
	Lost                              uint64 // no longer the worker's before their outcome was taken
}

type phase uint8

const (
	phaseNew phase = iota
	phaseRunning
	phaseDraining
	phaseEnded
)

// New returns a worker that runs handler for the jobs of cfg.Subjects. The
// connection stays the caller's: it is neither drained nor closed, and none of
// its handlers is replaced.
func New(nc *nats.Conn, cfg Config, handler Handler) (*Worker, error) {
	if nc == nil || handler == nil {
		return nil, errors.New("workers: a connection and a handler are needed")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("workers: config: %w", err)
	}
	w := &Worker{
		nc: nc, cfg: cfg, log: cfg.Logger.With("worker", cfg.Name), inbox: nc.NewInbox(), began: time.Now(), directed: true,
		patience:  defaultPatience,
		handler:   chain(handler, cfg.Middleware),
		claimBody: []byte(`+CLAIM {"worker":"` + cfg.Name + `"}`),
		kick:      make(chan struct{}, 1), changed: make(chan struct{}, 1),
		byeDone: make(chan struct{}, 1), closed: make(chan struct{}), known: make(chan struct{}),
	}
	w.meet = sync.OnceFunc(func() { close(w.known) })
	w.roomy.L = &w.mu
	w.schedule.interval = cfg.Heartbeat
	queue, _ := json.Marshal(cfg.Queue)
	covered, _ := json.Marshal(cfg.Subjects)
	w.beatHead = `{"worker":"` + cfg.Name + `","queue":` + string(queue) + `,"subjects":` + string(covered) +
		`,"capacity":` + strconv.Itoa(cfg.Concurrency) + `,"free":`
	return w, nil
}

// Name returns the worker's name.
func (w *Worker) Name() string { return w.cfg.Name }

// Stats returns what the worker does and did.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Running, s.Waiting, s.Unconfirmed = w.running, w.ready.len()+w.arrived.len()+w.claiming, w.settling
	return s
}

// Run runs jobs until ctx is done, and then stops in order, as the package
// comment says. It returns nil after an orderly stop; an error when it could
// not subscribe, the connection was closed, handlers did not return in time,
// or outcomes were left unconfirmed. It can be called once.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	status := w.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer w.nc.RemoveStatusListener(status)
	err := w.subscribeOwn()
	var keeper sync.WaitGroup
	stopKeeper := make(chan struct{})
	keeper.Go(func() { w.keep(stopKeeper, status) })
	if err == nil && w.introduce(ctx) {
		err = w.subscribeTargets()
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-w.closed:
			err = fmt.Errorf("workers: %w", nats.ErrConnectionClosed)
		}
	}
	goodbye := w.drain(err != nil)
	close(stopKeeper)
	keeper.Wait()
	goodbye()
	for _, s := range w.lasting {
		s.Unsubscribe() // fails only when the connection is closed
	}
	if w.nc.IsConnected() {
		w.nc.FlushTimeout(w.patience.unsubscribe) // so that the server knows when Run returns
	}
	return errors.Join(err, w.end())
}

func (w *Worker) begin(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseNew {
		return errors.New("workers: Run was called before; make a new worker")
	}
	w.phase = phaseRunning
	w.base, w.cancelAll = context.WithCancelCause(context.WithoutCancel(ctx))
	w.beatHeader = w.inject(ctx, nil)
	w.beatFrame = beatMargin + len(w.beatHead)
	for name, values := range w.beatHeader {
		w.beatFrame += len(name) + len(values[0])
	}
	return nil
}

// now is a clock that only goes forward.
func (w *Worker) now() time.Duration { return time.Since(w.began) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
