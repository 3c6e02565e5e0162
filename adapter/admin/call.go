package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// maxBody bounds the body of a call.
const maxBody = 64 << 10

// call is one question.
type call struct {
	verb   *verb
	target string // of the target form; empty: none
	body   []byte
	peer   bool // from another bridge: what this bridge's disk alone holds
	who    who
}

// allows reports whether the call may know of jobs of the target.
func (c *call) allows(target string) bool { return c.target == "" || c.target == target }

// answer is what is sent back: body, failure or both.
type answer struct {
	body    any
	failure *job.Error
}

// handle runs a call of the micro service.
func (s *Service) handle(v *verb, r micro.Request) {
	if r.Reply() != "" && !s.o.Bridge.Answers(r.Reply()) {
		s.audit.badReply(v.name, r.Reply())
		return
	}
	if failure := s.begin(); failure != nil {
		s.fail(r, answer{failure: failure})
		return
	}
	done, gone := make(chan answer), make(chan struct{})
	go func() {
		defer s.end()
		a := s.do(v, r)
		select {
		case done <- a:
		case <-gone:
			// The request is no longer ours: the service looks at it when handle
			// has returned.
			s.send(r.Reply(), a)
		}
	}()
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case a := <-done:
		if a.failure != nil {
			s.fail(r, a)
			return
		}
		s.send(r.Reply(), a)
	case <-wait.C:
		close(gone)
	}
}

// do reads the request and runs it.
func (s *Service) do(v *verb, r micro.Request) answer {
	c := &call{verb: v, body: r.Data(), who: readWho(r.Headers().Get(requestInfo))}
	target, _ := subjects.APITarget(s.o.Prefix, v.name, r.Subject())
	if target != "" {
		if err := subjects.CheckTarget(s.o.Prefix, target); err != nil {
			return answer{failure: job.ErrTarget.With("%v; the subject ends in exactly one target", err)}
		}
		c.target = target
	}
	return s.run(c)
}

// run runs a call, and notes it when it was to change something.
func (s *Service) run(c *call) answer {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
	defer cancel()
	a := s.answer(ctx, c)
	if c.verb.changes && !c.peer {
		s.audit.note(c, a)
	}
	return a
}

func (s *Service) answer(ctx context.Context, c *call) answer {
	if len(c.body) > maxBody {
		return answer{failure: job.ErrHeader.With("the body has %d bytes, at most %d are read", len(c.body), maxBody)}
	}
	if c.verb.changes {
		if failure := s.mutable(); failure != nil {
			return answer{failure: failure}
		}
	}
	body, err := c.verb.run(s, ctx, c)
	switch {
	case err != nil && ctx.Err() != nil && !errors.Is(err, job.ErrUnavailable):
		return answer{failure: job.ErrUnavailable.With("no answer within %v, the outcome is not known; ask again: %v", s.o.Timeout, err)}
	case err != nil:
		return answer{failure: job.AsError(err)}
	}
	if change, ok := body.(api.Change); ok && change.Result == job.ResultUnknown {
		return answer{body, job.ErrUnknown.With("no job %.64q", change.ID)}
	}
	return answer{body: body}
}

// encode returns the body of an answer.
func (s *Service) encode(a *answer) []byte {
	if a.body == nil {
		a.body = api.Failure{Error: a.failure}
	}
	data, err := marshal(a.body)
	if err == nil && int64(len(data)) > s.room() {
		err = errors.New("the answer is larger than the server's max_payload")
	}
	if err == nil {
		return data
	}
	a.failure = job.ErrTooLarge.With("%v", err)
	data, _ = marshal(api.Failure{Error: a.failure})
	return data
}

// marshal is [json.Marshal], but > stays readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// answerHead is kept free for the headers of an answer.
const answerHead = 4 << 10

// room is how large the body of an answer may be.
func (s *Service) room() int64 { return max(s.nc.MaxPayload()-answerHead, answerHead) }

// fail answers so that the service counts an error.
func (s *Service) fail(r micro.Request, a answer) {
	data := s.encode(&a)
	if err := r.Error(strconv.Itoa(a.failure.Code), a.failure.Description, data); err != nil && r.Reply() != "" {
		s.audit.unsent(err)
	}
}

// send answers on reply, if one is asked for.
func (s *Service) send(reply string, a answer) {
	if reply == "" {
		return
	}
	m := &nats.Msg{Subject: reply, Data: s.encode(&a)}
	if a.failure != nil {
		m.Header = nats.Header{micro.ErrorCodeHeader: {strconv.Itoa(a.failure.Code)}, micro.ErrorHeader: {a.failure.Description}}
	}
	if err := s.nc.PublishMsg(m); err != nil {
		s.audit.unsent(err)
	}
}
