package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Checker records jobs from the publish to the delivery. Its methods may be
// called at any time from any goroutine; a delivery may be recorded before
// the producer's answer.
type Checker struct {
	now func() time.Time

	mu      sync.Mutex
	jobs    []*tracked
	wrong   []Violation // what was seen to be wrong at once
	counts  Counts
	waiters []*waiter
}

// NewChecker returns a Checker that has recorded nothing.
func NewChecker() *Checker { return &Checker{now: time.Now} }

// Counts are what a test waits for.
type Counts struct {
	Sent       int // jobs
	Accepted   int // jobs acknowledged
	Refused    int // jobs answered with an error
	Unanswered int // jobs without an answer
	Delivered  int // jobs delivered at least once
	Deliveries int
	Confirmed  int // jobs whose completion was confirmed
	Missing    int // jobs acknowledged, but neither delivered nor ended otherwise
}

// tracked is what is known of one job.
type tracked struct {
	number    int
	target    string
	earliest  time.Time // what its due time may be at the earliest; zero: not known
	id        string    // as acknowledged
	due       time.Time // as acknowledged
	answers   int
	refused   bool
	accepted  bool
	ended     bool // cancelled or dead
	delivered []Delivery
	confirmed uint64 // the attempt whose completion was confirmed; 0: none
}

func (j *tracked) missing() bool { return j.accepted && !j.ended && len(j.delivered) == 0 }

// Delivery is what a worker got.
type Delivery struct {
	Job     int // number of the job
	ID      string
	Due     time.Time
	Attempt uint64
	At      time.Time
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
	c.jobs = append(c.jobs, &tracked{number: n, target: target, earliest: earliest})
	c.counts.Sent++
	c.unlock()
	m := nats.NewMsg(subject)
	m.Header[headerJob] = []string{strconv.Itoa(n)}
	m.Data = body(n)
	return m
}

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
	first := j.answers == 0
	j.answers++
	switch {
	case err != nil:
		c.counts.Unanswered++
	case a.Error != nil:
		j.refused = true
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
	switch {
	case a.ID == "" || a.Seq == 0:
		c.violate("G7", j, "is acknowledged without id or seq: %+v", a)
	case a.Due.Before(j.earliest):
		c.violate("G3", j, "has due %v, but was asked for %v at the earliest", stamp(a.Due), stamp(j.earliest))
	case j.accepted && (a.ID != j.id || !a.Due.Equal(j.due)):
		c.violate("G1", j, "is acknowledged as id %q due %v and as id %q due %v", j.id, stamp(j.due), a.ID, stamp(a.Due))
	}
	was := j.missing()
	if !j.accepted {
		c.counts.Accepted++
	}
	j.accepted, j.id, j.due = true, a.ID, a.Due
	c.recount(j, was)
}

// Delivered records that a worker got m.
func (c *Checker) Delivered(m *nats.Msg) (d Delivery) {
	at := c.now()
	d, err := readDelivery(m)
	d.At = at
	c.mu.Lock()
	defer c.unlock()
	j := c.find(m)
	if j == nil || err != nil {
		c.violate("G2", j, "is delivered on %s, which nobody sent: headers %v, payload %q: %v", m.Subject, m.Header, m.Data, err)
		return d
	}
	c.compare(j, m, d)
	if at.Before(d.Due) {
		c.violate("G3", j, "is delivered %v before it is due", d.Due.Sub(at))
	}
	was := j.missing()
	if len(j.delivered) == 0 {
		c.counts.Delivered++
	}
	j.delivered = append(j.delivered, d)
	c.recount(j, was)
	c.counts.Deliveries++
	return d
}

// added are the headers that a delivery has beyond those that were sent.
var added = []string{"Nats-Msg-Id", "Delay-Job-Id", "Delay-Due", "Delay-Attempt", "Delay-Ack-Wait", "Delay-Token"}

func readDelivery(m *nats.Msg) (d Delivery, err error) {
	var errs [3]error
	d.ID = m.Header.Get("Delay-Job-Id")
	d.Job, errs[0] = strconv.Atoi(first(m.Header[headerJob]))
	d.Due, errs[1] = time.Parse(time.RFC3339Nano, m.Header.Get("Delay-Due"))
	d.Attempt, errs[2] = strconv.ParseUint(m.Header.Get("Delay-Attempt"), 10, 32)
	return d, errors.Join(errs[:]...)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// compare checks that m is what was sent for j.
func (c *Checker) compare(j *tracked, m *nats.Msg, d Delivery) {
	if m.Subject != j.target {
		c.violate("G2", j, "is delivered on %s, not on its target %s", m.Subject, j.target)
	}
	if want := body(j.number); !bytes.Equal(m.Data, want) {
		c.violate("G2", j, "has payload %q, sent was %q", m.Data, want)
	}
	for name := range m.Header {
		if name != headerJob && !slices.Contains(added, name) {
			c.violate("G2", j, "has a header %q that was not sent", name)
		}
	}
	if d.ID == "" || d.Attempt == 0 {
		c.violate("G2", j, "is delivered without id or attempt: headers %v", m.Header)
	}
}

// Confirmed records that the completion of the delivery m was answered as
// durable.
func (c *Checker) Confirmed(m *nats.Msg) {
	d, err := readDelivery(m)
	c.mu.Lock()
	defer c.unlock()
	j := c.find(m)
	if j == nil || err != nil {
		return // noted when it was delivered
	}
	if j.confirmed == 0 {
		c.counts.Confirmed++
	}
	j.confirmed = max(j.confirmed, d.Attempt)
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

// Deliveries returns the deliveries of jobs of the target, in the order of the
// jobs.
func (c *Checker) Deliveries(target string) (out []Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.target == target {
			out = append(out, j.delivered...)
		}
	}
	return out
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

func stamp(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

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
		b = fmt.Appendf(b, " #%d at %s", d.Attempt, stamp(d.At))
	}
	return string(b)
}
