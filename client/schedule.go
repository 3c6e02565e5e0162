package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/textproto"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// Control headers of a job.
const (
	headerID       = "Nats-Msg-Id"
	headerIn       = "Delay-In"
	headerAt       = "Delay-At"
	headerSchedule = "Nats-Schedule"
	headerReplace  = "Delay-Replace"
)

// Job is a message to be delivered later.
type Job struct {
	// ID names the job and makes scheduling it again harmless; empty: the
	// bridge makes one. White space at its ends, and line breaks, cannot be sent.
	ID string
	// Target is the subject that the job is delivered to.
	Target string
	// Payload is the message body.
	Payload []byte
	// Header travels with the job; those named Delay-* control the delivery. Its
	// time is not among them: that is said by the call.
	Header nats.Header
	// Replace replaces the pending job with this ID.
	Replace bool
}

// Receipt says what a bridge has taken.
type Receipt struct {
	ID        string    `json:"id"`
	Due       time.Time `json:"due"`
	Stored    string    `json:"stored"`    // where the job is: redis, local, redis+local or memory
	Duplicate bool      `json:"duplicate"` // a job with this ID lives, or lived just now; Due is that one's
	Seq       uint64    `json:"seq"`       // rises with every job of one bridge
}

// Schedule asks for j to be delivered after delay.
func (c *Client) Schedule(ctx context.Context, j Job, delay time.Duration) (Receipt, error) {
	return c.schedule(ctx, Item{Job: j, In: delay})
}

// ScheduleAt asks for j to be delivered at t; a time in the past means now.
func (c *Client) ScheduleAt(ctx context.Context, j Job, t time.Time) (Receipt, error) {
	return c.schedule(ctx, Item{Job: j, At: t})
}

func (c *Client) schedule(ctx context.Context, item Item) (Receipt, error) {
	m, err := c.message(ctx, &item)
	if err != nil {
		return Receipt{}, err
	}
	reply, err := c.ask(ctx, m)
	if err != nil {
		return Receipt{}, err
	}
	return readReceipt(m, reply.Data)
}

// message builds the request for an item. The caller's header is left alone. What
// NATS would send otherwise than it is given, or not at all, is refused.
func (c *Client) message(ctx context.Context, item *Item) (*nats.Msg, error) {
	// A target that is no subject would not reach the bridge, and so would
	// have no answer that says why.
	if err := subjects.CheckTarget(c.o.Prefix, item.Target); err != nil {
		return nil, ErrTarget.With("%v", err)
	}
	m := nats.NewMsg(c.o.Prefix + ".to." + item.Target)
	m.Data = item.Payload
	maps.Copy(m.Header, item.Header)
	if item.ID != "" {
		m.Header.Set(headerID, item.ID)
	}
	if item.Replace {
		m.Header.Set(headerReplace, "true")
	}
	if err := checkHeader(m.Header); err != nil {
		return nil, err
	}
	if item.At.IsZero() {
		m.Header.Set(headerIn, item.In.String())
	} else {
		m.Header.Set(headerAt, timeText(item.At))
	}
	c.inject(ctx, m.Header)
	return m, nil
}

// timeText writes a time for the bridge. In UTC, because RFC 3339 has no seconds in
// offsets, which those of old times and of fixed zones may have.
func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// checkHeader checks a header before the time of its job is added.
func checkHeader(h nats.Header) error {
	for name, values := range h {
		switch {
		case !sendableName(name):
			return ErrHeader.With("header %q: not a name: want printable ASCII without a space or colon", name)
		case strings.EqualFold(name, headerIn) || strings.EqualFold(name, headerAt) || strings.EqualFold(name, headerSchedule):
			return ErrSchedule.With("header %s: the time is that of the call, it cannot be a header too", name)
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n") {
				return ErrHeader.With("header %s: a line break cannot be sent: %.100q", name, v)
			}
		}
	}
	if id := h.Get(headerID); id != textproto.TrimString(id) {
		return ErrHeader.With("the id %q begins or ends with white space, which cannot be sent", id)
	}
	return nil
}

func sendableName(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' || name[i] == ':' {
			return false
		}
	}
	return name != ""
}

// readReceipt reads the answer to m.
func readReceipt(m *nats.Msg, data []byte) (Receipt, error) {
	var a struct {
		Receipt
		Error *Error `json:"error"`
	}
	err := json.Unmarshal(data, &a)
	switch {
	case a.Error != nil:
		return Receipt{}, a.Error
	case err != nil || a.ID == "":
		return Receipt{}, fmt.Errorf("answer on %s is not a bridge's: %.100q; does a stream capture this subject?", m.Subject, data)
	}
	if id := m.Header.Get(headerID); id != "" {
		a.ID = id // JSON cannot say one that is no UTF-8
	}
	return a.Receipt, nil
}
