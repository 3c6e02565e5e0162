package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/job"
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

// ErrUnknown is what Get returns for a job that no bridge knows (any more).
var ErrUnknown = job.ErrUnknown

// ErrNoBridge means that nobody listens on the subject that was asked: no bridge with
// this prefix runs on the NATS system, or the account is another one.
var ErrNoBridge = errors.New("no bridge answers")

// PermissionError means that the NATS server does not let this user publish to
// Subject, or subscribe to it for answers.
type PermissionError struct {
	Subject   string
	Subscribe bool
}

func (e *PermissionError) Error() string {
	if e.Subscribe {
		return fmt.Sprintf("this NATS user may not subscribe to %s, where answers arrive: allow it, or set an inbox prefix that is allowed", e.Subject)
	}
	return fmt.Sprintf("this NATS user may not publish to %s: allow it", e.Subject)
}

// Unwrap returns nats.ErrPermissionViolation.
func (e *PermissionError) Unwrap() error { return nats.ErrPermissionViolation }

// The server refuses a publish with an error on the connection, of which whoever
// waits for the answer hears nothing: the last error of the connection is compared
// with the one before.

// deniedPublish returns the subject that the server has refused to publish to since
// the last error of the connection was before; empty: none.
func (c *Client) deniedPublish(before error) string {
	now := c.nc.LastError()
	if !errors.Is(now, nats.ErrPermissionViolation) || now == before {
		return ""
	}
	return quotedAfter(now.Error(), "publish to ")
}

// deniedInbox returns the inbox that the server has refused to this connection. A
// connection subscribes to the one of its requests once, so the error may be an old
// one; what is refused to one inbox is refused to all, whose tokens are random.
func (c *Client) deniedInbox() string {
	now := c.nc.LastError()
	if !errors.Is(now, nats.ErrPermissionViolation) {
		return ""
	}
	prefix := c.nc.Opts.InboxPrefix
	if prefix == "" {
		prefix = "_INBOX"
	}
	inbox := quotedAfter(now.Error(), "subscription to ")
	if !strings.HasPrefix(inbox, prefix+".") || !strings.HasSuffix(inbox, ".*") {
		return ""
	}
	return inbox
}

// quotedAfter returns what stands in quotes after words in text, in any case.
func quotedAfter(text, words string) string {
	at := strings.Index(strings.ToLower(text), words)
	if at < 0 {
		return ""
	}
	rest, ok := strings.CutPrefix(text[at+len(words):], `"`)
	if !ok {
		return ""
	}
	quoted, _, _ := strings.Cut(rest, `"`)
	return quoted
}

// denied returns a *PermissionError if the server has refused what asking on
// subject needs.
func (c *Client) denied(before error, subject string) error {
	if c.deniedPublish(before) == subject {
		return &PermissionError{Subject: subject}
	}
	if inbox := c.deniedInbox(); inbox != "" {
		return &PermissionError{Subject: inbox, Subscribe: true}
	}
	return nil
}

// noAnswer says why there was none on subject.
func (c *Client) noAnswer(subject string, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w on %s: start one with this prefix on this NATS system", ErrNoBridge, subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return ErrTooLarge.With("the message would pass the %d bytes that the NATS server takes", c.nc.MaxPayload())
	}
	return fmt.Errorf("no answer on %s: %w", subject, err)
}
