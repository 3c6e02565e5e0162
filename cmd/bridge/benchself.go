package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// selfSystem is a NATS server, a redis-server and a bridge, each in a process
// of its own, for one measurement.
type selfSystem struct {
	nats, bridge *child
	redis        *exec.Cmd
	dir          string
}

// selfStart bounds the start of each.
const selfStart = 10 * time.Second

// startSelf starts it and points cfg at it.
func startSelf(ctx context.Context, std stdio, cfg *config) (_ *selfSystem, err error) {
	s := &selfSystem{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.nats, err = startChild(std, "bench-nats"); err != nil {
		return nil, err
	}
	cfg.nats = natsConfig{urls: []string{<-s.nats.lines}}
	args := []string{"--nats-url", cfg.nats.urls[0], "--prefix", cfg.bridge.Prefix, "--id", "bench", "--http-addr", "off", "--log-level", "error"}
	if s.dir, err = os.MkdirTemp("", program+"-bench-"); err != nil {
		return nil, err
	}
	args = append(args, "--data-dir", filepath.Join(s.dir, "bridge"))
	url, err := s.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	if url == "" {
		fmt.Fprintln(std.err, "no redis-server found: measuring the local store")
		args = append(args, "--store", storeLocal)
	} else {
		args = append(args, "--redis-url", url)
	}
	nc, err := cfg.nats.dial(program + "/bench")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	started, err := nc.SubscribeSync(subjects.Started(cfg.bridge.Prefix))
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		return nil, err
	}
	if s.bridge, err = startChild(std, "bench-serve", args...); err != nil {
		return nil, err
	}
	if err := s.awaitBridge(ctx, started); err != nil {
		return nil, err
	}
	return s, nil
}

// awaitBridge waits until the bridge says that it has started.
func (s *selfSystem) awaitBridge(ctx context.Context, started *nats.Subscription) error {
	ctx, cancel := context.WithTimeout(ctx, selfStart)
	defer cancel()
	go func() {
		select {
		case <-s.bridge.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	if _, err := started.NextMsgWithContext(ctx); err != nil {
		return errors.New("the bridge does not start")
	}
	return nil
}

// startRedis starts a redis-server with an append-only file that is synced
// every second, and returns its URL, empty if there is no redis-server.
func (s *selfSystem) startRedis(ctx context.Context) (string, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr) // an address of a listener has a port
	_ = l.Close()                         // opened only to find a free port
	s.redis = exec.Command(binary, "--port", port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
	if err := s.redis.Start(); err != nil {
		s.redis = nil
		return "", fmt.Errorf("start redis-server: %w", err)
	}
	return "redis://" + addr, awaitListener(ctx, addr)
}

// awaitListener returns when addr takes connections.
func awaitListener(ctx context.Context, addr string) error {
	for end := time.Now().Add(selfStart); ; {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("redis-server does not start: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends all processes and removes what they wrote.
func (s *selfSystem) stop() {
	if s.bridge != nil {
		s.bridge.stop()
	}
	if s.redis != nil {
		_ = s.redis.Process.Kill() // its data is thrown away
		_ = s.redis.Wait()         // it was killed
	}
	if s.nats != nil {
		s.nats.stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // a temporary directory
	}
}

// runBenchServe is serve, but ends with its parent.
func runBenchServe(ctx context.Context, c *command, std stdio, args []string) error {
	s, err := newServer(c, std, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		untilStdinEnds(std)
		cancel()
	}()
	return s.run(ctx)
}

// runBenchNATS is a NATS server that prints its address and ends with its
// parent.
func runBenchNATS(_ context.Context, _ *command, std stdio, _ []string) error {
	srv, err := startNATS("nats://127.0.0.1:0", "", "")
	if err != nil {
		return err
	}
	defer stopNATS(srv)
	fmt.Fprintln(std.out, srv.ClientURL())
	untilStdinEnds(std)
	return nil
}

// startResponder starts the responder of plain requests. It reaches NATS the
// way this process does; secrets go through the environment, where other users
// do not see them.
func startResponder(std stdio, cfg *config) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "bench-responder")
	cmd.Stderr = std.err
	cmd.Env = os.Environ()
	for name, v := range cfg.values {
		if k := keyNamed(name); v.from != "default" && len(v.items) > 0 {
			cmd.Env = append(cmd.Env, k.env()+"="+strings.Join(v.items, ","))
		}
	}
	cmd.Env = append(cmd.Env, keyNamed("nats.url").env()+"="+cfg.nats.url())
	return startLines(cmd)
}

// runBenchResponder answers plain requests, prints on which subject, and ends
// with its parent.
func runBenchResponder(_ context.Context, _ *command, std stdio, _ []string) error {
	cfg, err := loadProducerConfig(nil, std.env)
	if err != nil {
		return err
	}
	nc, err := cfg.nats.dial(program + "/bench-responder")
	if err != nil {
		return err
	}
	defer nc.Close()
	subject := nc.NewInbox()
	answer := []byte(`{"stream":"DELAY","seq":1,"duplicate":false,"id":"000000000000","due":"2026-11-30T09:30:00.000000Z","stored":"redis"}`)
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil { // an answer is lost only with the connection
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(std.out, subject)
	untilStdinEnds(std)
	return nil
}
