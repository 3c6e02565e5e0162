package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// DefaultPrefix is the first token of all subjects, unless the bridges are
// configured otherwise.
const DefaultPrefix = "delay"

// defaultTimeout is how long an answer is waited for when the context of the
// call has no deadline.
const defaultTimeout = 5 * time.Second

// Control headers of a job.
const (
	headerID      = "Nats-Msg-Id"
	headerIn      = "Delay-In"
	headerAt      = "Delay-At"
	headerReplace = "Delay-Replace"
)

// Error is a refusal by the bridge. Two with the same codes match under
// [errors.Is], whatever their descriptions.
type Error = job.Error

// The refusals that a producer can get.
var (
	ErrSchedule    = job.ErrSchedule
	ErrTarget      = job.ErrTarget
	ErrForbidden   = job.ErrForbidden
	ErrHeader      = job.ErrHeader
	ErrTooLarge    = job.ErrTooLarge
	ErrConflict    = job.ErrConflict
	ErrFull        = job.ErrFull
	ErrUnavailable = job.ErrUnavailable
)

// ErrNoBridge means that nobody listens on the intake subjects: no bridge with
// this prefix runs on the NATS system, or the account is another one.
var ErrNoBridge = errors.New("no bridge answers")

// Options configures a Client.
type Options struct {
	// Prefix of the bridges' subjects; empty: [DefaultPrefix].
	Prefix string
	// Timeout of a call whose context has no deadline; zero: 5 s.
	Timeout time.Duration
}

// Job is a message to be delivered later.
type Job struct {
	// ID names the job and makes scheduling it again harmless; empty: the
	// bridge makes one.
	ID string
	// Target is the subject that the job is delivered to.
	Target string
	// Payload is the message body.
	Payload []byte
	// Header travels with the job; those named Delay-* control the delivery.
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

// Client schedules jobs over one NATS connection.
type Client struct {
	nc *nats.Conn
	o  Options
}

// New returns a Client that uses nc.
func New(nc *nats.Conn, o Options) (*Client, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if err := subjects.CheckPrefix(o.Prefix); err != nil {
		return nil, err
	}
	return &Client{nc: nc, o: o}, nil
}

// Schedule asks for j to be delivered after delay.
func (c *Client) Schedule(ctx context.Context, j Job, delay time.Duration) (Receipt, error) {
	return c.schedule(ctx, j, headerIn, delay.String())
}

// ScheduleAt asks for j to be delivered at t; a time in the past means now.
func (c *Client) ScheduleAt(ctx context.Context, j Job, t time.Time) (Receipt, error) {
	return c.schedule(ctx, j, headerAt, t.Format(time.RFC3339Nano))
}

func (c *Client) schedule(ctx context.Context, j Job, header, when string) (Receipt, error) {
	// A target that is no subject would not reach the bridge, and so would
	// have no answer that says why.
	if err := subjects.CheckTarget(c.o.Prefix, j.Target); err != nil {
		return Receipt{}, ErrTarget.With("%v", err)
	}
	m := c.message(j)
	m.Header.Set(header, when)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
	}
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return Receipt{}, fmt.Errorf("%w on %s: start one with this prefix on this NATS system", ErrNoBridge, m.Subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return Receipt{}, ErrTooLarge.With("the message would pass the %d bytes that the NATS server takes", c.nc.MaxPayload())
	case err != nil:
		return Receipt{}, fmt.Errorf("no answer on %s: %w", m.Subject, err)
	}
	return readReceipt(m.Subject, reply.Data)
}

// message builds the request for j but for its time. The caller's header is
// left alone.
func (c *Client) message(j Job) *nats.Msg {
	m := nats.NewMsg(c.o.Prefix + ".to." + j.Target)
	m.Data = j.Payload
	maps.Copy(m.Header, j.Header)
	if j.ID != "" {
		m.Header.Set(headerID, j.ID)
	}
	if j.Replace {
		m.Header.Set(headerReplace, "true")
	}
	return m
}

func readReceipt(subject string, data []byte) (Receipt, error) {
	var a struct {
		Receipt
		Error *struct {
			Code        int    `json:"code"`
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	err := json.Unmarshal(data, &a)
	switch {
	case a.Error != nil:
		return Receipt{}, &Error{Code: a.Error.Code, ErrCode: a.Error.ErrCode, Description: a.Error.Description}
	case err != nil || a.ID == "":
		return Receipt{}, fmt.Errorf("answer on %s is not a bridge's: %.100q; does a stream capture this subject?", subject, data)
	}
	return a.Receipt, nil
}
