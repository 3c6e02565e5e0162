package integration

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// noon is the time of day in the tests of the checker.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// story tells a Checker what happened to one job.
type story struct {
	c   *Checker
	msg *nats.Msg
}

func newStory() *story {
	s := &story{c: NewChecker()}
	s.at(time.Second)
	s.msg = s.c.Send("delay.in.1s.orders.x", "orders.x", noon)
	return s
}

// at sets the time, counted from noon.
func (s *story) at(d time.Duration) { s.c.now = func() time.Time { return noon.Add(d) } }

func (s *story) answer(format string, args ...any) {
	s.c.Answered(s.msg, &nats.Msg{Data: fmt.Appendf(nil, format, args...)}, nil)
}

func (s *story) accept(id string) {
	s.answer(`{"stream":"DELAY","seq":1,"id":%q,"due":%q,"stored":"redis"}`, id, noon.Format(time.RFC3339Nano))
}

// delivery returns what a worker gets when all is well.
func (s *story) delivery(attempt int) *nats.Msg {
	m := nats.NewMsg("orders.x")
	m.Data = slices.Clone(s.msg.Data)
	m.Header[headerJob] = s.msg.Header[headerJob]
	m.Header.Set("Nats-Msg-Id", "a")
	m.Header.Set("Delay-Job-Id", "a")
	m.Header.Set("Delay-Due", noon.Format(time.RFC3339Nano))
	m.Header.Set("Delay-Attempt", strconv.Itoa(attempt))
	return m
}

func (s *story) deliver(attempt int) *nats.Msg {
	m := s.delivery(attempt)
	s.c.Delivered(m)
	return m
}

func TestCheckerFindsWhatIsBroken(t *testing.T) {
	altered := func(alter func(*nats.Msg)) func(*story) {
		return func(s *story) {
			s.accept("a")
			m := s.delivery(1)
			alter(m)
			s.c.Delivered(m)
		}
	}
	for name, c := range map[string]struct {
		rule Rule
		tell func(*story)
		want string // the guarantee broken, empty: none
	}{
		"all well":                  {Once, func(s *story) { s.accept("a"); s.deliver(1) }, ""},
		"delivered before answered": {Once, func(s *story) { s.deliver(1); s.accept("a") }, ""},
		"refused":                   {Once, func(s *story) { s.answer(`{"error":{"code":429,"err_code":20429}}`) }, ""},
		"no answer":                 {Once, func(s *story) { s.c.Answered(s.msg, nil, nats.ErrTimeout) }, ""},
		"no answer, delivered":      {Once, func(s *story) { s.c.Answered(s.msg, nil, nats.ErrTimeout); s.deliver(1) }, ""},
		"cancelled":                 {Once, func(s *story) { s.accept("a"); s.c.Ended(s.msg) }, ""},
		"sent again after no answer": {Once, func(s *story) {
			s.c.Answered(s.msg, nil, nats.ErrTimeout)
			s.answer(`{"seq":1,"duplicate":true,"id":"a","due":%q}`, noon.Format(time.RFC3339Nano))
			s.deliver(1)
		}, ""},
		"a second attempt": {Again, func(s *story) { s.accept("a"); s.deliver(1); s.deliver(2) }, ""},
		"completed by the second attempt": {Again, func(s *story) {
			s.accept("a")
			s.deliver(1)
			s.c.Confirmed(s.deliver(2))
		}, ""},

		"vanished":             {Again, func(s *story) { s.accept("a") }, "G1"},
		"refused, delivered":   {Again, func(s *story) { s.answer(`{"error":{"code":400}}`); s.deliver(1) }, "G2"},
		"after a 503":          {Once, func(s *story) { s.answer(`{"error":{"code":503}}`); s.deliver(1) }, ""},
		"never sent":           {Again, altered(func(m *nats.Msg) { m.Header[headerJob] = []string{"7"} }), "G2"},
		"without attempt":      {Again, altered(func(m *nats.Msg) { m.Header.Del("Delay-Attempt") }), "G2"},
		"payload altered":      {Again, altered(func(m *nats.Msg) { m.Data = append(m.Data, 0) }), "G2"},
		"header respelt":       {Again, altered(func(m *nats.Msg) { m.Header["Check-Job"], m.Header[headerJob] = m.Header[headerJob], nil }), "G2"},
		"header added":         {Again, altered(func(m *nats.Msg) { m.Header.Set("X", "y") }), "G2"},
		"control header kept":  {Again, altered(func(m *nats.Msg) { m.Header.Set("Delay-Max-Attempts", "2") }), "G2"},
		"on another target":    {Again, altered(func(m *nats.Msg) { m.Subject = "orders.y" }), "G2"},
		"another id":           {Again, altered(func(m *nats.Msg) { m.Header.Set("Delay-Job-Id", "b") }), "G2"},
		"early":                {Again, func(s *story) { s.accept("a"); s.at(-time.Microsecond); s.deliver(1) }, "G3"},
		"due before asked for": {Again, func(s *story) { s.c.jobs[0].earliest = job.At(noon.Add(1)); s.accept("a"); s.deliver(1) }, "G3"},
		"delivered twice":      {Once, func(s *story) { s.accept("a"); s.deliver(1); s.deliver(2) }, "G4"},
		"one attempt twice":    {Again, func(s *story) { s.accept("a"); s.deliver(1); s.deliver(1) }, "G4"},
		"attempt 2 at once":    {Once, func(s *story) { s.accept("a"); s.deliver(2) }, "G4"},
		"duplicate at once": {Again, func(s *story) {
			s.answer(`{"seq":1,"duplicate":true,"id":"a","due":%q}`, noon.Format(time.RFC3339Nano))
			s.deliver(1)
		}, "G4"},
		"after its completion": {Again, func(s *story) {
			s.accept("a")
			s.c.Confirmed(s.deliver(1))
			s.at(time.Hour)
			s.deliver(2)
		}, "G6"},
		"under way at its completion": {Again, func(s *story) { s.accept("a"); s.c.Confirmed(s.deliver(1)); s.deliver(2) }, ""},
		"without id":                  {Again, func(s *story) { s.accept(""); s.c.Ended(s.msg) }, "G7"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			c.tell(s)
			got := s.c.Violations(c.rule)
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("found %v, want nothing", got)
			case c.want != "" && !slices.ContainsFunc(got, func(v Violation) bool { return v.Guarantee == c.want }):
				t.Errorf("found %v, want a violation of %s", got, c.want)
			}
		})
	}
}

func TestCheckerShortensWhatItFinds(t *testing.T) {
	c := NewChecker()
	for range 100 {
		m := c.Send("delay.in.1s.orders.x", "orders.x", time.Time{})
		c.Answered(m, &nats.Msg{Data: []byte(`{"seq":1,"id":"a","due":"2026-11-30T12:00:00Z"}`)}, nil)
	}
	got := c.Violations(Once)
	if len(got) != perGuarantee+1 || got[perGuarantee].Error() != "G1: and 95 more" {
		t.Errorf("found %d: %v", len(got), got)
	}
}

func TestCheckerAwait(t *testing.T) {
	s := newStory()
	missing := s.c.Await(func(c Counts) bool { return c.Missing == 1 })
	found := s.c.Await(func(c Counts) bool { return c.Accepted == 1 && c.Missing == 0 })
	s.accept("a")
	if !met(missing) || met(found) {
		t.Fatal("an accepted job is not counted as missing")
	}
	s.deliver(1)
	if !met(found) {
		t.Fatal("a delivered job is counted as missing")
	}
	if now := s.c.Await(func(c Counts) bool { return c.Deliveries == 1 }); !met(now) {
		t.Error("what is true already is not noticed")
	}
	s.c.Answered(s.msg, nil, errors.New("lost"))
	if got, want := s.c.Counts(), (Counts{Sent: 1, Accepted: 1, Unanswered: 1, Delivered: 1, Deliveries: 1}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
}

func met(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
