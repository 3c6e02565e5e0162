package client

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// deniedAfter is how soon it is looked whether the server has refused a request that
// has no answer yet: its refusal takes one way, an answer at least two.
const deniedAfter = 100 * time.Millisecond

// ask sends m and waits for the answer.
func (c *Client) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	before := c.nc.LastError()
	look := time.AfterFunc(deniedAfter, func() {
		if err := c.denied(before, m.Subject); err != nil {
			giveUp(err)
		}
	})
	defer look.Stop()
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	if err == nil {
		return reply, nil
	}
	if denied := (*PermissionError)(nil); errors.As(context.Cause(ctx), &denied) {
		return nil, denied
	}
	if denied := c.denied(before, m.Subject); denied != nil {
		return nil, denied
	}
	return nil, c.noAnswer(m.Subject, err)
}
