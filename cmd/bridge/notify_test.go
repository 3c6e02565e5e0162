package main

import (
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// TestNotify: a service manager hears of each step of a bridge's life, and of none
// too early. It changes the environment, so it is not parallel.
func TestNotify(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	hears := func(want string) string {
		t.Helper()
		if err := manager.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 256)
		n, err := manager.Read(b)
		if got := string(b[:n]); err != nil || got[:min(n, len(want))] != want {
			t.Fatalf("hears %q, %v; want %q", got, err, want)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	p, addr := startWaiting(t)
	p.signal(syscall.SIGHUP) // too early, so it waits
	before := monotonic(t, daemon.SdNotifyMonotonicUsec())
	srv, err := startNATS("nats://"+addr, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer stopNATS(srv)

	hears("READY=1")
	put(t, "nats://"+addr, "--in", "1h", "orders.x", "hello")
	reloading := hears("RELOADING=1\n")
	if at := monotonic(t, reloading[len("RELOADING=1\n"):]); at < before {
		t.Errorf("reloads at %d µs, before %d", at, before)
	}
	hears("READY=1")
	p.await("configuration reloaded")
	p.signal(syscall.SIGTERM)
	hears("STOPPING=1")
	if code := p.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// startWaiting runs a bridge whose NATS is not there yet, but is to be at addr.
func startWaiting(t *testing.T) (p *process, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p = start(t, "serve", "--nats-url", "nats://"+addr, "--http-addr", "off", "--drain", "100ms")
	p.await("waiting for NATS")
	return p, addr
}

// monotonic reads what systemd compares with its own clock.
func monotonic(t *testing.T, line string) (us int64) {
	t.Helper()
	if _, err := fmt.Sscanf(line, "MONOTONIC_USEC=%d\n", &us); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return us
}

// TestNotifyFails: a manager that is gone is logged, and ends nothing.
func TestNotifyFails(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	p := start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--http-addr", "off", "--drain", "100ms")
	url := p.ready()["nats"]
	p.await("service manager cannot be told")
	put(t, url, "--in", "1h", "orders.x", "hello")
}
