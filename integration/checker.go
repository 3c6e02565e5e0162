package integration

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// Checker records jobs from the publish to the delivery. Its methods may be
// called at any time from any goroutine; a delivery may be recorded before
// the producer's answer. A job takes about 200 bytes.
type Checker struct {
	now func() time.Time

	mu      sync.Mutex
	jobs    []*tracked
	faults  []*Span
	wrong   []Violation // what was seen to be wrong at once
	silent  []silence   // producers that were not answered
	counts  Counts
	waiters []*waiter
}

// NewChecker returns a Checker that has recorded nothing.
func NewChecker() *Checker { return &Checker{now: time.Now} }

// Counts are what a test waits for.
type Counts struct {
	Sent       int // jobs
	Accepted   int // jobs acknowledged
	Local      int // of them, those that were not in Redis
	Refused    int // answers that were errors
	Unanswered int // messages without an answer
	Delivered  int // jobs delivered at least once
	Deliveries int
	Confirmed  int // jobs whose completion was confirmed
	Missing    int // jobs acknowledged, but neither delivered nor ended otherwise
}

// tracked is what is known of one job.
type tracked struct {
	number    int
	target    string
	earliest  job.Time      // what its due time may be at the earliest; zero: not known
	id        string        // as first seen, in an answer or a delivery
	due       job.Time      // likewise
	sent      job.Time      // the last time
	answered  job.Time      // as accepted
	wait      time.Duration // the longest wait for an answer
	answers   uint8
	stored    storedAt
	refused   bool
	accepted  bool
	ended     bool // cancelled or dead
	confirmed bool
	delivered []arrival
}

func (j *tracked) missing() bool { return j.accepted && !j.ended && len(j.delivered) == 0 }

// storedAt is where an answer said that the job is.
type storedAt uint8

const (
	elsewhere storedAt = iota
	inRedis
	inLocal
)

func readStored(s string) storedAt {
	switch s {
	case job.StoredRedis, "redis+local":
		return inRedis
	case job.StoredLocal:
		return inLocal
	}
	return elsewhere
}

// silence is a producer that waited in vain.
type silence struct {
	job      *tracked
	from, to job.Time
}

// headerJob carries the number of the job, and shows that names of headers
// keep their spelling.
const headerJob = "check-JOB"

// Send records a job and returns the message to publish; the test may add
// control headers. earliest is what the due time may be at the earliest, zero:
// not known.
func (c *Checker) Send(subject, target string, earliest time.Time) *nats.Msg {
	c.mu.Lock()
	n := len(c.jobs)
	j := &tracked{number: n, target: target, sent: c.clock()}
	if !earliest.IsZero() {
		j.earliest = job.At(earliest)
	}
	c.jobs = append(c.jobs, j)
	c.counts.Sent++
	c.unlock()
	m := nats.NewMsg(subject)
	m.Header[headerJob] = []string{strconv.Itoa(n)}
	m.Data = body(n)
	return m
}

// SentAgain records that m is published once more, because its outcome is not
// known or it was refused.
func (c *Checker) SentAgain(m *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.find(m).sent = c.clock()
}

func (c *Checker) clock() job.Time { return job.Time(c.now().UnixMicro()) }

// body is the payload of a job: up to 256 bytes of any value.
func body(n int) []byte {
	x := uint64(n)*0x9e3779b97f4a7c15 + 1
	size := int(x>>40) % 257
	b := make([]byte, 0, size+8)
	for len(b) < size {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b[:size]
}

// Answer is the reply to a producer.
type Answer struct {
	Seq       uint64
	Duplicate bool
	ID        string
	Due       time.Time
	Stored    string
	Error     *struct {
		Code        int
		ErrCode     int `json:"err_code"`
		Description string
	}
}

// Answered records the reply to m, or the error of waiting for it, after which
// the outcome is unknown. It returns the reply, decoded.
func (c *Checker) Answered(m, reply *nats.Msg, err error) Answer {
	var a Answer
	if err == nil {
		err = json.Unmarshal(reply.Data, &a)
	}
	c.mu.Lock()
	defer c.unlock()
	j := c.find(m)
	now, first := c.clock(), j.answers == 0
	j.answers++
	if err == nil {
		j.wait = max(j.wait, now.Sub(j.sent))
	}
	switch {
	case err != nil:
		c.counts.Unanswered++
		c.silent = append(c.silent, silence{j, j.sent, now})
	case a.Error != nil:
		// The outcome of a 503 is unknown, as that of silence.
		j.refused = a.Error.Code != 503
		c.counts.Refused++
	default:
		if a.Duplicate && first {
			c.violate("G4", j, "is answered as a duplicate, but was sent once")
		}
		c.accepted(j, a)
	}
	return a
}

func (c *Checker) accepted(j *tracked, a Answer) {
	due := job.At(a.Due)
	switch {
	case a.ID == "" || a.Seq == 0:
		c.violate("G7", j, "is acknowledged without id or seq: %+v", a)
	case due < j.earliest:
		c.violate("G3", j, "has due %v, but was asked for %v at the earliest", stamp(due), stamp(j.earliest))
	case j.id != "" && (a.ID != j.id || due != j.due):
		c.violate("G1", j, "is acknowledged as id %q due %v and before as id %q due %v", a.ID, stamp(due), j.id, stamp(j.due))
	}
	was := j.missing()
	j.stored, j.id, j.due = readStored(a.Stored), a.ID, due
	if !j.accepted {
		c.counts.Accepted++
		if j.stored == inLocal {
			c.counts.Local++
		}
		j.accepted, j.answered = true, c.clock()
	}
	c.recount(j, was)
}

// Ended records that the job of m was cancelled, or is in the dead-letter set.
func (c *Checker) Ended(m *nats.Msg) {
	c.mu.Lock()
	defer c.unlock()
	j := c.find(m)
	was := j.missing()
	j.ended = true
	c.recount(j, was)
}

// find returns the job of a message, nil when there is none. c.mu is held.
func (c *Checker) find(m *nats.Msg) *tracked {
	n, err := strconv.Atoi(first(m.Header[headerJob]))
	if err != nil || n < 0 || n >= len(c.jobs) {
		return nil
	}
	return c.jobs[n]
}

// recount notes how a change of j changes how many jobs are missing. c.mu is
// held.
func (c *Checker) recount(j *tracked, was bool) {
	switch is := j.missing(); {
	case is && !was:
		c.counts.Missing++
	case was && !is:
		c.counts.Missing--
	}
}

type waiter struct {
	cond func(Counts) bool
	met  chan struct{}
}

// Await returns a channel that is closed once cond is true of the counts. cond
// must not call the Checker.
func (c *Checker) Await(cond func(Counts) bool) <-chan struct{} {
	w := &waiter{cond, make(chan struct{})}
	c.mu.Lock()
	defer c.unlock()
	c.waiters = append(c.waiters, w)
	return w.met
}

// Counts returns the counts as they are.
func (c *Checker) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// unlock ends a change of the counts and wakes who waits for them.
func (c *Checker) unlock() {
	c.waiters = slices.DeleteFunc(c.waiters, func(w *waiter) bool {
		if !w.cond(c.counts) {
			return false
		}
		close(w.met)
		return true
	})
	c.mu.Unlock()
}

// Violation is one guarantee broken for one job.
type Violation struct {
	Guarantee string
	Text      string
}

func (v Violation) Error() string { return v.Guarantee + ": " + v.Text }

func stamp(t job.Time) string { return t.Time().Format("15:04:05.000000") }

// violate notes a violation. c.mu is held.
func (c *Checker) violate(guarantee string, j *tracked, format string, args ...any) {
	c.wrong = append(c.wrong, violation(guarantee, j, format, args...))
}

func violation(guarantee string, j *tracked, format string, args ...any) Violation {
	who := "a message"
	if j != nil {
		who = fmt.Sprintf("job %d (id %q, target %s, due %s, deliveries%s)", j.number, j.id, j.target, stamp(j.due), j.history())
	}
	return Violation{guarantee, who + " " + fmt.Sprintf(format, args...)}
}

// history is a short text of the deliveries.
func (j *tracked) history() string {
	if len(j.delivered) == 0 {
		return " none"
	}
	var b []byte
	for _, d := range j.delivered {
		b = fmt.Appendf(b, " #%d at %s (%s)", d.attempt, stamp(d.at), d.fate)
	}
	return string(b)
}
