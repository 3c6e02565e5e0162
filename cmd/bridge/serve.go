package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/delaybridge/delaybridge/adapter"
)

func runServe(ctx context.Context, c *command, std stdio, args []string) error {
	s, err := newServer(c, std, args)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx, s.log)
	defer stop()
	return s.run(ctx)
}

// bridgeServer is one bridge with everything around it.
type bridgeServer struct {
	load     func() (config, error) // reads the configuration anew
	cfg      config
	level    *slog.LevelVar
	log      *slog.Logger
	registry *prometheus.Registry
	otel     otelConfig
	out      io.Writer // where spans go that are for people
	health   *health
	api      apiState
	hup      chan os.Signal      // asks for a reload
	onReady  func(*bridgeServer) // for commands that go on from there; may be nil
}

// newServer reads flags and configuration.
func newServer(c *command, std stdio, args []string) (*bridgeServer, error) {
	fs := newFlags(c)
	flags := registerKeys(fs, keys)
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return nil, err
	}
	load := func() (config, error) { return loadConfig(flags, std.env) }
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	otel, err := readOTel(std.env)
	if err != nil {
		return nil, &inputError{err: err}
	}
	s := &bridgeServer{load: load, cfg: cfg, level: new(slog.LevelVar), registry: prometheus.NewRegistry(), otel: otel, out: std.out}
	s.level.Set(cfg.logLevel)
	s.log = newLogger(std.err, s.level, cfg.logFormat)
	return s, nil
}

func newLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(traceHandler{slog.NewJSONHandler(w, o)})
	}
	return slog.New(traceHandler{slog.NewTextHandler(w, o)})
}

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The
// second one ends the process at once.
func untilSignal(ctx context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	done := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-done:
				return
			case sig := <-signals:
				if !first {
					log.Error("second signal: stopped at once, not in order", "signal", sig.String())
					os.Exit(1)
				}
				cancel()
				log.Info("stopping in order; a second signal stops at once", "signal", sig.String())
				notifyStopping(log)
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); close(done); cancel() }
}

// run serves until ctx is done and the bridge has stopped in order.
func (s *bridgeServer) run(ctx context.Context) (err error) {
	tuneMemory()
	s.hup = make(chan os.Signal, 1)
	signal.Notify(s.hup, syscall.SIGHUP) // one that comes before the bridge is ready waits, and does not end it
	defer signal.Stop(s.hup)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := registerBuild(s.registry, &s.cfg); err != nil {
		return err
	}
	if s.health, err = startHealth(&s.cfg.http, s.registry, s.log); err != nil {
		if !errors.Is(err, syscall.EADDRINUSE) { // which may pass
			err = &inputError{err: err}
		}
		return err
	}
	defer s.health.stop()
	stopTracing, err := startTracing(ctx, &s.cfg, s.otel, s.out, s.log)
	if err != nil {
		return err
	}
	defer stopTracing()
	store, err := openStore(ctx, &s.cfg, s.log, s.registry)
	if err != nil {
		return orderly(ctx, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s.health.setOpened()
	conns, err := s.connect(ctx)
	if err != nil {
		return orderly(ctx, err)
	}
	defer conns.Intake.Close()
	defer conns.Dispatch.Close()

	bridgeConfig := s.cfg.bridge
	bridgeConfig.Logger, bridgeConfig.Registerer = s.log, s.registry
	store.configure(&bridgeConfig, &s.cfg)
	bridge, err := adapter.New(bridgeConfig, conns, store.Store, store.letter)
	if err != nil {
		return err
	}
	defer store.attend(ctx, bridge)()
	return s.operate(ctx, bridge, conns, store)
}

// orderly turns the error of a start that a signal ended into none.
func orderly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// connect makes the bridge's two connections.
func (s *bridgeServer) connect(ctx context.Context) (adapter.Conns, error) {
	open := func(use string) (*nats.Conn, error) {
		return s.cfg.nats.connect(ctx, s.log, program+"/"+s.cfg.bridge.ID+"/"+use, adapter.ConnOptions()...)
	}
	in, err := open("intake")
	if err != nil {
		return adapter.Conns{}, err
	}
	out, err := open("dispatch")
	if err != nil {
		in.Close()
		return adapter.Conns{}, err
	}
	return adapter.Conns{Intake: in, Dispatch: out}, nil
}

// operate runs the bridge, tells when it is ready, and reloads.
func (s *bridgeServer) operate(ctx context.Context, bridge *adapter.Bridge, conns adapter.Conns, store *openedStore) error {
	ctx, end := context.WithCancelCause(ctx)
	cancel := func() { end(nil) }
	defer cancel()
	endWith(end, conns.Intake, conns.Dispatch)
	ended := make(chan error, 1)
	go func() { ended <- bridge.Run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-bridge.Ready():
	}
	for _, nc := range []*nats.Conn{conns.Intake, conns.Dispatch} {
		if err := s.cfg.nats.refused(nc, s.cfg.bridge.Prefix); err != nil {
			cancel()
			return errors.Join(err, <-ended)
		}
	}
	stopAPI, err := s.serveAPI(ctx, bridge, store)
	if err != nil {
		err = orderly(ctx, err)
		cancel()
		return errors.Join(err, <-ended)
	}
	s.health.setReady(func() (string, error) { return store.mode(), readiness(ctx, conns, store) })
	s.logReady(conns, store)
	notifyReady(s.log)
	if s.onReady != nil {
		s.onReady(s)
	}
	var loops sync.WaitGroup
	loops.Go(func() { s.reloadLoop(ctx, bridge, store) })
	loops.Go(func() { store.watch(ctx, s.log, checkPeriod) })
	loops.Go(func() { <-ctx.Done(); stopAPI() })
	err = <-ended
	cancel()
	loops.Wait()
	if why := context.Cause(ctx); !errors.Is(why, context.Canceled) {
		err = errors.Join(err, why)
	}
	if err == nil {
		s.log.Info("stopped in order")
	}
	return err
}

// endWith ends the bridge when one of its connections does: after an error that it does
// not know the client gives a connection up for good, and only a new process gets one.
func endWith(end context.CancelCauseFunc, conns ...*nats.Conn) {
	for _, nc := range conns {
		nc.SetClosedHandler(func(nc *nats.Conn) {
			end(fmt.Errorf("the connection to NATS has ended for good: %w; start the bridge again", cmp.Or(nc.LastError(), nats.ErrConnectionClosed)))
		})
	}
}

// readiness says why no jobs are taken, or nil.
func readiness(ctx context.Context, conns adapter.Conns, store *openedStore) error {
	switch {
	case ctx.Err() != nil:
		return errors.New("stopping")
	case !conns.Intake.IsConnected() || !conns.Dispatch.IsConnected():
		return errors.New("no connection to NATS")
	}
	if err := store.usable(); err != nil {
		return fmt.Errorf("the store takes no jobs: %w", err)
	}
	return nil
}

func (s *bridgeServer) logReady(conns adapter.Conns, store *openedStore) {
	args := []any{
		"nats", conns.Intake.ConnectedUrlRedacted(), "http", s.health.url(), "store", s.cfg.store,
		"id", s.cfg.bridge.ID, "prefix", s.cfg.bridge.Prefix, "version", version(),
	}
	if store.addr != "" {
		args = append(args, "redis", store.addr, "mode", store.mode())
	}
	if s.cfg.dataDir != "" {
		args = append(args, "data_dir", s.cfg.dataDir)
	}
	s.log.Info("ready", args...)
}
