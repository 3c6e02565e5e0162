package testredis

import (
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
