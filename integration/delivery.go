package integration

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// arrival is one delivery of a job.
type arrival struct {
	at          job.Time
	incarnation uint64
	attempt     uint32
	fate        Fate
	ended       job.Time // when its fate was recorded
}

// Delivery is what a worker got.
type Delivery struct {
	Job     int // number of the job
	ID      string
	Due     time.Time
	Attempt uint64
	At      time.Time

	incarnation uint64
	nth         int // among the job's deliveries, from 0
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
	d.nth = len(j.delivered)
	if d.nth == 0 {
		c.counts.Delivered++
	}
	if j.id == "" {
		j.id, j.due = d.ID, job.At(d.Due)
	}
	j.delivered = append(j.delivered, arrival{job.Time(at.UnixMicro()), d.incarnation, uint32(d.Attempt), Ignored, 0})
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
	if t, err := subjects.ParseToken(m.Header.Get("Delay-Token")); err == nil {
		d.incarnation = t.Incarnation
	}
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
	if j.id != "" && (d.ID != j.id || job.At(d.Due) != j.due) {
		c.violate("G2", j, "is delivered as id %q due %s", d.ID, stamp(job.At(d.Due)))
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
	if !j.confirmed {
		c.counts.Confirmed++
	}
	j.confirmed = true
	for i := range j.delivered {
		if a := &j.delivered[i]; a.incarnation == d.incarnation && a.attempt == uint32(d.Attempt) {
			a.fate, a.ended = Confirmed, job.Time(c.now().UnixMicro())
		}
	}
}

// Settled records what a worker did with a delivery. The fate of one about
// which nothing is said is Ignored.
func (c *Checker) Settled(d Delivery, f Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Job >= len(c.jobs) || d.nth >= len(c.jobs[d.Job].delivered) {
		return // noted when it was delivered
	}
	a := &c.jobs[d.Job].delivered[d.nth]
	a.fate, a.ended = f, job.Time(c.now().UnixMicro())
}

// Deliveries returns the deliveries of jobs of the target, in the order of the
// jobs.
func (c *Checker) Deliveries(target string) (out []Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.target == target {
			for i, a := range j.delivered {
				out = append(out, Delivery{Job: j.number, ID: j.id, Due: j.due.Time(), Attempt: uint64(a.attempt),
					At: a.at.Time(), incarnation: a.incarnation, nth: i})
			}
		}
	}
	return out
}
