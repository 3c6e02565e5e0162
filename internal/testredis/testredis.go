// Package testredis runs a real redis-server for tests: a child process on a
// free loopback port, with an append-only file in a temporary directory.
package testredis

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is long, because a test machine may be busy.
const startTimeout = 30 * time.Second

// Server is one redis-server. Its methods end the test on failure.
type Server struct {
	t    testing.TB
	dir  string
	port int
	args []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// Start runs a server until the test ends; args are added to its command line.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redis-server not found: install it (Debian: apt-get install redis-server): %v", err)
	}
	s := &Server{t: t, dir: t.TempDir(), args: args}
	t.Cleanup(s.Kill)
	// The port may be taken between the choice and the start.
	for try := 1; ; try++ {
		s.port = freePort(t)
		err := s.start()
		if err == nil {
			return s
		}
		if try == 5 {
			t.Fatalf("redis-server does not start: %v", err)
		}
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("no free port: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Addr is the server's host and port.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is the server's redis:// address.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// PID is the process id of the server.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

func (s *Server) start() error {
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--loglevel", "notice",
	}, s.args...)
	cmd := exec.Command("redis-server", args...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	// The server must not outlive a test process that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	exited, err := startOnThread(cmd)
	if err != nil {
		return err
	}
	if err := s.awaitReady(exited); err != nil {
		_ = cmd.Process.Kill()
		<-exited
		return fmt.Errorf("%w\n%s", err, out)
	}
	s.mu.Lock()
	s.cmd, s.exited = cmd, exited
	s.mu.Unlock()
	return nil
}

// startOnThread starts cmd and returns what is closed when it has ended. The
// signal of Pdeathsig is tied to the thread that started the process, so that
// thread is kept as long.
func startOnThread(cmd *exec.Cmd) (<-chan struct{}, error) {
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(exited)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return exited, <-started
}

// awaitReady waits until the server answers PING, which it does not while it
// loads its data.
func (s *Server) awaitReady(exited <-chan struct{}) error {
	end := time.After(startTimeout)
	for {
		if s.ping() {
			return nil
		}
		select {
		case <-exited:
			return errors.New("it exited")
		case <-end:
			return fmt.Errorf("no answer within %v", startTimeout)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *Server) ping() bool {
	c, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	var b [7]byte
	n, _ := c.Read(b[:])
	return string(b[:n]) == "+PONG\r\n"
}

// Freeze stops the process where it is; what clients send meanwhile waits in
// its sockets.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatalf("redis-server is not running")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal %v to redis-server: %v", sig, err)
	}
}

// Kill ends the server at once; it may run no more.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Restart kills the server if it runs, and starts it again with its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatalf("redis-server does not start again: %v", err)
	}
}
