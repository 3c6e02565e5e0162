// Package testnats runs a NATS server inside a test, on a free loopback port.
// A server ends with its test, after which none of its goroutines is left, so
// that goleak can be used beside it. For tests only.
//
//	srv := testnats.Start(t)
//	nc, err := nats.Connect(srv.URL())
package testnats

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyTimeout is long because a machine that runs many tests at once is slow
// to schedule a new listener; a healthy server is ready in milliseconds.
const readyTimeout = 10 * time.Second

// Option changes how a server is set up.
type Option func(*server.Options) error

// JetStream switches JetStream on, with its streams kept under dir. Two
// servers that are started one after the other with the same dir share them.
func JetStream(dir string) Option {
	return func(o *server.Options) error {
		o.JetStream, o.StoreDir = true, dir
		return nil
	}
}

// MaxPayload limits a message (headers and payload) to n bytes.
func MaxPayload(n int32) Option {
	return func(o *server.Options) error {
		o.MaxPayload = n
		return nil
	}
}

// Config sets what text, in the language of the server's configuration file,
// says: users and their permissions, for instance. Where the server listens
// and that it does not log cannot be changed.
func Config(text string) Option {
	return func(o *server.Options) error { return o.ProcessConfigString(text) }
}

// Server is a running NATS server.
type Server struct {
	srv  *server.Server
	opts []Option
	port int
}

// Start starts a server and returns once it takes connections. The server is
// shut down when t ends. Clients that are to close before it register their
// own Cleanup after this call.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{opts: opts, port: server.RANDOM_PORT}
	t.Cleanup(s.Shutdown)
	s.start(t)
	return s
}

// Restart shuts the server down, if it still runs, and starts one with the
// same options on the same port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Shutdown()
	s.start(t)
}

// Reload gives the running server other options in place of those it was
// started with, as far as a server can change them while it runs.
func (s *Server) Reload(t testing.TB, opts ...Option) {
	t.Helper()
	s.opts = opts
	if err := s.srv.ReloadOptions(s.options(t)); err != nil {
		t.Fatalf("testnats: reload: %v", err)
	}
}

func (s *Server) options(t testing.TB) *server.Options {
	t.Helper()
	var o server.Options
	for _, set := range s.opts {
		if err := set(&o); err != nil {
			t.Fatalf("testnats: server option: %v", err)
		}
	}
	o.Host, o.Port = "127.0.0.1", s.port
	o.NoLog, o.NoSigs = true, true
	return &o
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	o := s.options(t)
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatalf("testnats: new server: %v", err)
	}
	s.srv = srv
	srv.Start()
	if !srv.ReadyForConnections(readyTimeout) {
		t.Fatalf("testnats: server takes no connections after %v; look at its options (can it write to its JetStream directory %q?)",
			readyTimeout, o.StoreDir)
	}
	s.port = srv.Addr().(*net.TCPAddr).Port
}

// URL is where clients connect. With users configured, a client adds
// nats.UserInfo.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Shutdown stops the server and waits until it is gone. More than one call is
// harmless.
func (s *Server) Shutdown() {
	if s.srv == nil {
		return
	}
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}
