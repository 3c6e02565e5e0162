package testredis

import (
	"bufio"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLife(t *testing.T) {
	s := Start(t)
	if !s.ping() {
		t.Fatal("a started server does not answer")
	}
	s.Freeze()
	answered := make(chan bool, 1)
	go func() { answered <- s.ping() }()
	select {
	case <-answered:
		t.Error("a frozen server answers")
	case <-time.After(20 * time.Millisecond):
	}
	s.Thaw()
	if !<-answered {
		t.Error("a thawed server does not answer what waited")
	}
	pid := s.PID()
	s.Restart()
	if !s.ping() || s.PID() == pid {
		t.Error("after Restart the server is not another process that answers")
	}
	s.Kill()
	if s.ping() {
		t.Error("a killed server answers")
	}
	s.Kill() // does nothing
	s.Restart()
	if !s.ping() {
		t.Error("a killed server does not start again")
	}
}

func TestRestartEmpty(t *testing.T) {
	s := Start(t)
	ask := func(command, want string) {
		t.Helper()
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(command + "\r\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := bufio.NewReader(c).ReadString('\n'); got != want+"\r\n" {
			t.Errorf("%s: %q, %v; want %q", command, got, err, want)
		}
	}
	ask("SET k v", "+OK")
	s.Restart()
	ask("EXISTS k", ":1")
	s.RestartEmpty()
	ask("EXISTS k", ":0")
}
