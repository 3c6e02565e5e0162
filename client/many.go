package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// window bounds how many jobs of one ScheduleMany are on their way at once.
const window = 4096

// Item is a job and its time: At, or, when that is zero, after In.
type Item struct {
	Job
	In time.Duration
	At time.Time
}

// Result says what became of one Item.
type Result struct {
	Receipt Receipt
	Err     error // as of Schedule
}

// ScheduleMany schedules many jobs without waiting for each: it takes a fraction of
// the time of as many calls of Schedule. There is one result per item, in order.
// The error is nil when all were scheduled; else it says how many were not, and
// wraps the first of their errors.
//
// When ctx has no deadline, what is unanswered fails once no answer at all has come
// for Options.Timeout.
func (c *Client) ScheduleMany(ctx context.Context, items []Item) ([]Result, error) {
	b := c.newBulk(len(items))
	defer b.ticker.Stop()
	sub, err := c.nc.Subscribe(b.inbox+"*", b.answered)
	if err != nil {
		return nil, fmt.Errorf("subscribe to answers: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails on a closed connection alone
	for i := range items {
		b.send(ctx, i, &items[i])
	}
	for len(b.pending) > 0 {
		b.wait(ctx)
	}
	return b.results, b.err()
}

// bulk is one ScheduleMany under way. All but answered run in its goroutine.
type bulk struct {
	c       *Client
	inbox   string
	results []Result
	pending map[int]*nats.Msg // what was sent for the items that have no result yet
	answers chan answer       // never full: at most window are pending
	before  error             // the last error of the connection, before
	ticker  *time.Ticker
	last    time.Time        // of the last answer
	denied  map[string]error // subjects that the server refused
}

type answer struct {
	item int
	msg  *nats.Msg
}

// newBulk returns a bulk of n items of which none has been sent.
func (c *Client) newBulk(n int) *bulk {
	return &bulk{c: c, inbox: c.nc.NewInbox() + ".", results: make([]Result, n), pending: make(map[int]*nats.Msg, min(n, window)),
		answers: make(chan answer, window), before: c.nc.LastError(), ticker: time.NewTicker(deniedAfter), last: time.Now()}
}

// answered takes a reply; what was answered already is ignored.
func (b *bulk) answered(m *nats.Msg) {
	item, err := strconv.Atoi(strings.TrimPrefix(m.Subject, b.inbox))
	if err != nil {
		return
	}
	select {
	case b.answers <- answer{item, m}:
	default: // somebody else's: nobody answers more often than he is asked
	}
}

// send publishes an item, once there is room for it.
func (b *bulk) send(ctx context.Context, i int, item *Item) {
	for len(b.pending) >= window {
		b.wait(ctx)
	}
	m, err := b.c.message(ctx, item)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = b.denied[m.Subject]
	}
	if err == nil {
		m.Reply = b.inbox + strconv.Itoa(i)
		if err = b.c.nc.PublishMsg(m); err != nil {
			err = b.c.noAnswer(m.Subject, err)
		}
	}
	if err != nil {
		b.results[i].Err = err
		return
	}
	if len(b.pending) == 0 {
		b.last = time.Now()
	}
	b.pending[i] = m
}

// wait takes answers, or finds out that there will be none.
func (b *bulk) wait(ctx context.Context) {
	select {
	case a := <-b.answers:
		b.take(a)
		b.takeAll()
	case <-b.ticker.C:
		b.look(ctx)
	case <-ctx.Done():
		b.takeAll()
		b.fail(func(string) error { return ctx.Err() })
	}
}

// takeAll takes the answers that are there.
func (b *bulk) takeAll() {
	for range len(b.answers) {
		b.take(<-b.answers)
	}
}

func (b *bulk) take(a answer) {
	b.last = time.Now()
	sent, ok := b.pending[a.item]
	if !ok {
		return
	}
	delete(b.pending, a.item)
	r := &b.results[a.item]
	if len(a.msg.Data) == 0 && a.msg.Header.Get("Status") == "503" {
		r.Err = b.c.noAnswer(sent.Subject, nats.ErrNoResponders)
		return
	}
	r.Receipt, r.Err = readReceipt(sent, a.msg.Data)
}

// look fails what the server has refused, and everything when no answer has come
// for too long, or none can.
func (b *bulk) look(ctx context.Context) {
	b.takeAll() // sending may have taken longer than the timeout, and answers wait
	if inbox := b.c.deniedInbox(); strings.HasPrefix(inbox, b.inbox) {
		b.fail(func(string) error { return &PermissionError{Subject: inbox, Subscribe: true} })
	}
	if subject := b.c.deniedPublish(b.before); subject != "" && b.denied[subject] == nil {
		if b.denied == nil {
			b.denied = map[string]error{}
		}
		b.denied[subject] = &PermissionError{Subject: subject}
		b.fail(func(s string) error { return b.denied[s] })
	}
	if b.c.nc.IsClosed() {
		b.fail(func(string) error { return nats.ErrConnectionClosed })
	}
	if _, bounded := ctx.Deadline(); !bounded && time.Since(b.last) >= b.c.o.Timeout {
		b.fail(func(string) error { return context.DeadlineExceeded })
	}
}

// fail ends the pending items whose subject has an error.
func (b *bulk) fail(why func(subject string) error) {
	for i, sent := range b.pending {
		err := why(sent.Subject)
		if err == nil {
			continue
		}
		delete(b.pending, i)
		if denied := (*PermissionError)(nil); !errors.As(err, &denied) {
			err = b.c.noAnswer(sent.Subject, err)
		}
		b.results[i].Err = err
	}
}

func (b *bulk) err() error {
	failed, first := 0, 0
	for i := range b.results {
		if b.results[i].Err == nil {
			continue
		}
		if failed == 0 {
			first = i
		}
		failed++
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d jobs not scheduled, the first of them item %d: %w", failed, len(b.results), first, b.results[first].Err)
}
