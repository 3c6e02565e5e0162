package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

func init() { registry["nats-rr"] = func(map[string]bool) System { return &requestReply{} } }

// requestReply is no job system: plain NATS request-reply with a responder
// that only answers, in a process of its own. It is what an acknowledged
// publish over NATS costs at least, in scenario A.
type requestReply struct {
	nats, responder *proc
	url             string
}

const requestSubject = "rq"

func (s *requestReply) Start(dir string) (err error) {
	if s.nats, s.url, err = startNATS(dir, false, false); err != nil {
		return err
	}
	if s.responder, err = startResponder(dir, s.url); err != nil {
		s.Stop()
	}
	return err
}

func (s *requestReply) Stop() {
	s.responder.stop()
	s.nats.stop()
}

func (s *requestReply) PIDs() []int { return []int{s.nats.pid(), s.responder.pid()} }

func (s *requestReply) NewProducer(i, conc int) (Producer, error) {
	nc, err := nats.Connect(s.url)
	return requester{nc}, err
}

func (s *requestReply) StartWorkers(Deliver) (func(), error) {
	return nil, errors.New("request-reply holds no jobs, use it in scenario A only")
}

type requester struct{ nc *nats.Conn }

func (p requester) Enqueue(_ time.Time, payload []byte, done func(error)) {
	_, err := p.nc.Request(requestSubject, payload, 30*time.Second)
	done(err)
}

func (p requester) Close() error { p.nc.Close(); return nil }

// serveResponder is the child process that answers requests.
func serveResponder(args []string) error {
	if len(args) != 1 {
		return errors.New("serve-responder needs the NATS URL")
	}
	nc, err := nats.Connect(args[0])
	if err != nil {
		return err
	}
	defer nc.Close()
	reply := []byte("+OK")
	if _, err := nc.QueueSubscribe(requestSubject, "g", func(m *nats.Msg) { m.Respond(reply) }); err != nil {
		return err
	}
	waitForSignal()
	return nil
}

// startResponder returns once the responder answers.
func startResponder(dir, url string) (*proc, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	p, err := startProc(dir, exe, "serve-responder", url)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = nc.Request(requestSubject, nil, time.Second); err == nil {
			return p, nil
		}
	}
	p.stop()
	return nil, fmt.Errorf("the responder does not answer: %w", err)
}
