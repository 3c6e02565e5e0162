package client

import (
	"context"
	"maps"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"

	"github.com/delaybridge/delaybridge/internal/natstrace"
)

// inject writes the trace context of ctx, if there is one, into the headers of a
// job, in place of what they have of the kind: half of one and half of another would
// be neither.
func (c *Client) inject(ctx context.Context, h nats.Header) {
	p := c.o.Propagator
	if p == nil {
		p = otel.GetTextMapPropagator()
	}
	var written natstrace.Lazy
	p.Inject(ctx, &written)
	if written.Header == nil {
		return
	}
	for _, field := range p.Fields() {
		natstrace.Header(h).Del(field)
	}
	maps.Copy(h, written.Header)
}
