package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

func TestCheckerWaits(t *testing.T) {
	s := newStory() // sent at 1s
	s.at(1400 * time.Millisecond)
	s.answer(`{"error":{"code":429,"err_code":20429}}`)
	s.at(2 * time.Second)
	s.c.SentAgain(s.msg)
	s.at(2100 * time.Millisecond)
	s.accept("a")
	if w := s.c.Waits(); w.N != 1 || w.Max != 400*time.Millisecond {
		t.Errorf("waits %v, want one of 400ms", w)
	}
	if h := s.c.Histogram([]time.Duration{100 * time.Millisecond, 400 * time.Millisecond}); !slices.Equal(h, []int{0, 1, 0}) {
		t.Errorf("histogram %v", h)
	}
	if v := s.c.Waiting(400 * time.Millisecond); len(v) > 0 {
		t.Errorf("found %v, want nothing", v)
	}
	if v := s.c.Waiting(399 * time.Millisecond); len(v) != 1 || v[0].Guarantee != "G8" {
		t.Errorf("found %v, want a violation of G8", v)
	}
}

// Silence is a violation, unless a bridge was killed meanwhile.
func TestCheckerSilence(t *testing.T) {
	for _, kill := range []bool{false, true} {
		s := newStory()
		_, healed := s.c.Fault("f", kill)
		healed()
		s.at(3 * time.Second)
		s.c.Answered(s.msg, nil, nats.ErrTimeout)
		if v := s.c.Waiting(time.Minute); (len(v) == 0) != kill {
			t.Errorf("kill %v: found %v", kill, v)
		}
	}
}

func TestCheckerLateness(t *testing.T) {
	s := newStory()
	s.accept("a") // at 1s, due at 0s
	s.at(3 * time.Second)
	s.deliver(1)
	second := job.At(noon.Add(time.Second))
	if l := s.c.Lateness("orders.x", second, second+1); l.N != 1 || l.Max != 2*time.Second {
		t.Errorf("lateness %v, want one of 2s", l)
	}
	if l := s.c.Lateness("orders.x", second+1, never); l.N != 0 {
		t.Errorf("lateness %v of what was due before", l)
	}
}

func TestCheckerFirstLocal(t *testing.T) {
	s := newStory()
	s.answer(`{"seq":1,"id":"a","due":%q,"stored":"local"}`, noon.Format(time.RFC3339Nano))
	if c := s.c.Counts(); c.Local != 1 {
		t.Errorf("counts %+v", c)
	}
	second := job.At(noon.Add(time.Second))
	if at := s.c.FirstLocal(second); at != second {
		t.Errorf("first local answer at %v", at)
	}
	if at := s.c.FirstLocal(second + 1); at != 0 {
		t.Errorf("an answer at %v to what was sent later", at)
	}
}

func TestCheckerCauses(t *testing.T) {
	fault := func(kill bool) func(*story) {
		return func(s *story) {
			_, healed := s.c.Fault("f", kill)
			healed()
		}
	}
	for name, c := range map[string]struct {
		fate Fate
		what func(*story)
		want Cause
	}{
		"ignored":                {Ignored, nil, LeaseRanOut},
		"nacked":                 {Nacked, nil, Nak},
		"acknowledged":           {Acked, nil, Unexplained},
		"acknowledged, fault":    {Acked, fault(false), LostAck},
		"acknowledged, kill":     {Acked, fault(true), Killed},
		"acknowledged, no reply": {Unconfirmed, nil, LostAck},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.accept("a")
			d := s.c.Delivered(s.delivery(1))
			s.c.Settled(d, c.fate)
			if c.what != nil {
				c.what(s)
			}
			s.at(5 * time.Second)
			s.deliver(2)
			if got := s.c.Duplicates(); len(got) != 1 || got[c.want] != 1 {
				t.Errorf("duplicates %v, want one: %v", got, c.want)
			}
			if got := s.c.Broken(Explained); (got["G4"] != 0) != (c.want == Unexplained) {
				t.Errorf("broken %v", got)
			}
		})
	}
}
