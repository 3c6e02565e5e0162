package client

import (
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/delaybridge/delaybridge/subjects"
)

// DefaultPrefix is the first token of all subjects, unless the bridges are
// configured otherwise.
const DefaultPrefix = "delay"

// defaultTimeout is how long an answer is waited for when the context of the
// call has no deadline.
const defaultTimeout = 5 * time.Second

// Options configures a Client.
type Options struct {
	// Prefix of the bridges' subjects; empty: [DefaultPrefix].
	Prefix string
	// Timeout of a call whose context has no deadline; zero: 5 s.
	Timeout time.Duration
	// Propagator writes the trace context of a call into the headers of its
	// jobs; nil: otel.GetTextMapPropagator, which does nothing unless the program
	// sets one.
	Propagator propagation.TextMapPropagator
}

// Client schedules and manages jobs over one NATS connection.
type Client struct {
	nc    *nats.Conn
	o     Options
	scope string // the only target that it manages; empty: all
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

// ForTarget returns a Client that manages the jobs of one target alone, those of
// others being unknown to it. It asks on <prefix>.api.<verb>.<target>, so it works
// for users who may publish there and not on <prefix>.api.<verb>.
func (c *Client) ForTarget(target string) (*Client, error) {
	if err := subjects.CheckTarget(c.o.Prefix, target); err != nil {
		return nil, ErrTarget.With("%v", err)
	}
	scoped := *c
	scoped.scope = target
	return &scoped, nil
}
