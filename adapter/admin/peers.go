package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// peerTimeout bounds a question to other bridges. It leaves time for the answer
// within 500 ms of the question to this one.
const peerTimeout = 500 * time.Millisecond

// peerCall is what a bridge asks another one: what its disk alone holds.
type peerCall struct {
	Verb   string          `json:"verb"`
	Target string          `json:"target,omitempty"` // of the target form
	Body   json.RawMessage `json:"body,omitempty"`
}

// peerAnswer is the answer.
type peerAnswer struct {
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  *job.Error      `json:"error,omitempty"`
}

// fromPeer answers another bridge.
func (s *Service) fromPeer(m *nats.Msg) {
	if !s.o.Bridge.Answers(m.Reply) {
		s.audit.badReply("from a bridge", m.Reply)
		return
	}
	if failure := s.begin(); failure != nil {
		s.toPeer(m.Reply, answer{failure: failure})
		return
	}
	go func() {
		defer s.end()
		var p peerCall
		err := json.Unmarshal(m.Data, &p)
		v := peerVerb(p.Verb)
		if err != nil || v == nil {
			s.toPeer(m.Reply, answer{failure: job.ErrHeader.With("bridge %s does not know what it is asked; is it of an older version?", s.o.Bridge.ID())})
			return
		}
		a := s.run(&call{verb: v, target: p.Target, body: p.Body, peer: true})
		if a.body != nil {
			a.failure = nil
		}
		s.toPeer(m.Reply, a)
	}()
}

func (s *Service) toPeer(reply string, a answer) {
	p := peerAnswer{Error: a.failure}
	var err error
	if a.failure == nil {
		p.Answer, err = json.Marshal(a.body)
	}
	data, encodeErr := json.Marshal(p)
	if err = errors.Join(err, encodeErr); err == nil {
		err = s.nc.Publish(reply, data)
	}
	if err != nil {
		s.audit.unsent(err)
	}
}

// askPeers asks all other bridges at once. Those that are gone, and their disks with
// them, are left out. err says who did not answer, or could not.
func askPeers[T any](ctx context.Context, s *Service, c *call, limit time.Duration) (answers []T, err error) {
	peers := s.o.Bridge.LivePeers()
	if c.peer || len(peers) == 0 {
		return nil, nil
	}
	question, err := marshal(peerCall{c.verb.name, c.target, bytes.TrimSpace(c.body)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type reply struct {
		answer T
		err    error
	}
	replies := make(chan reply, len(peers))
	for _, peer := range peers {
		go func() {
			var r reply
			r.err = s.askPeer(ctx, peer, question, &r.answer)
			replies <- r
		}()
	}
	for range peers {
		switch r := <-replies; {
		case r.err == nil:
			answers = append(answers, r.answer)
		case !errors.Is(r.err, job.ErrUnknown) && !errors.Is(r.err, nats.ErrNoResponders):
			err = r.err
		}
	}
	return answers, err
}

func (s *Service) askPeer(ctx context.Context, peer string, question []byte, into any) error {
	m, err := s.nc.RequestWithContext(ctx, subjects.PeerAPI(s.o.Prefix, peer), question)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return err
	case err != nil:
		return job.ErrUnavailable.With("bridge %s, whose disk may hold the job, does not answer; ask again: %v", peer, err)
	}
	var a peerAnswer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return job.ErrUnavailable.With("bridge %s, whose disk may hold the job, answers what cannot be read; is it of another version? %v", peer, err)
	}
	if a.Error != nil {
		return a.Error
	}
	if err := json.Unmarshal(a.Answer, into); err != nil {
		return fmt.Errorf("answer of bridge %s: %w", peer, err)
	}
	return nil
}

// rank orders what bridges say of one job.
type rank int

const (
	nothing rank = iota // not known
	ended
	living
)

// best returns the answer to a call about one job: own with err is what the store
// says. Other bridges are asked unless it has the job living.
func best[T any](ctx context.Context, s *Service, c *call, own T, err error, of func(T) rank) (T, error) {
	if c.peer || err == nil && of(own) == living {
		return own, err
	}
	if err != nil && !errors.Is(job.AsError(err), job.ErrUnavailable) {
		return own, err
	}
	answers, peersErr := askPeers[T](ctx, s, c, peerTimeout)
	for _, a := range answers {
		if of(a) > of(own) {
			own, err = a, nil
		}
	}
	if err == nil && of(own) == nothing {
		err = peersErr
	}
	return own, err
}
