package integration

import (
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// Fate is what became of a delivery at its worker.
type Fate uint8

// The fates of a delivery.
const (
	Ignored     Fate = iota // the worker did not answer
	Acked                   // acknowledged, without asking for an answer
	Nacked                  // refused: to be delivered again
	Unconfirmed             // the worker asked whether its acknowledgement is durable, and got no answer
	Confirmed               // the acknowledgement was answered: it is durable
)

var fateNames = [...]string{"ignored", "acknowledged", "nacked", "unconfirmed", "confirmed"}

func (f Fate) String() string { return fateNames[f] }

// Span is a time in which a fault was in force.
type Span struct {
	Name     string
	Kill     bool // a bridge did not run
	From, To job.Time
}

// Fault records that a fault begins; the returned function, that it has healed.
func (c *Checker) Fault(name string, kill bool) (s *Span, healed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = &Span{Name: name, Kill: kill, From: c.clock(), To: never}
	c.faults = append(c.faults, s)
	return s, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.To = c.clock()
	}
}

// never is later than any time of a test.
const never = job.Time(1) << 60

// overlapped reports whether a fault was in force between from and to. c.mu is
// held.
func (c *Checker) overlapped(from, to job.Time, kill bool) bool {
	for _, s := range c.faults {
		if (s.Kill || !kill) && s.From <= to && s.To >= from {
			return true
		}
	}
	return false
}

// Cause is why a job was delivered once more.
type Cause uint8

// The causes of a further delivery.
const (
	Unexplained Cause = iota
	LeaseRanOut
	Nak
	LostAck        // the acknowledgement was sent while a fault was in force, and not confirmed
	Killed         // as LostAck, when the fault was the kill of a bridge
	UnknownOutcome // the producer sent it again, not knowing what had become of the first
)

// Causes are all causes.
var Causes = [...]Cause{Unexplained, LeaseRanOut, Nak, LostAck, Killed, UnknownOutcome}

var causeNames = [...]string{"unexplained", "lease ran out", "nak", "lost acknowledgement", "bridge killed", "unknown outcome of a put"}

func (c Cause) String() string { return causeNames[c] }

// ackTime bounds how long an acknowledgement that nobody waits for takes to be
// stored.
const ackTime = time.Second

// cause says why delivery i of j, which is not its first, came about. c.mu is
// held.
func (c *Checker) cause(j *tracked, i int) Cause {
	now := j.delivered[i]
	before := -1
	for k, d := range j.delivered[:i] {
		if d.incarnation == now.incarnation && (before < 0 || d.attempt > j.delivered[before].attempt) {
			before = k
		}
	}
	if before < 0 {
		return UnknownOutcome
	}
	prev := j.delivered[before]
	until := min(now.at, prev.at.Add(ackTime))
	switch {
	case prev.fate == Nacked:
		return Nak
	case prev.fate == Ignored:
		return LeaseRanOut
	case c.overlapped(prev.at, until, true):
		return Killed
	case prev.fate == Unconfirmed || c.overlapped(prev.at, until, false):
		return LostAck
	}
	return Unexplained
}

// Duplicates counts the deliveries beyond the first by their cause.
func (c *Checker) Duplicates() map[Cause]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := map[Cause]int{}
	for _, j := range c.jobs {
		for i := 1; i < len(j.delivered); i++ {
			n[c.cause(j, i)]++
		}
	}
	return n
}
