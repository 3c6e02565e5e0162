package workers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Causes of a handler's cancelled context, see [context.Cause].
var (
	// ErrLost: the job is no longer the worker's. The outcome is not sent.
	ErrLost = errors.New("workers: the job is no longer this worker's")
	// ErrStopping: the worker stops and its drain time is over. A handler that
	// returns this or a cancelled context's error gives the job back, and the
	// attempt is not charged.
	ErrStopping = errors.New("workers: the worker stops")
)

// RetryAfter is returned by a handler that failed and wants the job to come
// again after d, whatever its backoff says.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("workers: try again later")
	}
	return &RetryError{Delay: d, Err: err}
}

// Discard is returned by a handler when the job can never succeed: it goes to
// the dead-letter set at once, with that reason.
func Discard(reason string) error { return &DiscardError{Reason: reason} }

// Snooze is returned by a handler that wants the job to come again after d
// without this attempt being charged.
func Snooze(d time.Duration) error { return &SnoozeError{Delay: d} }

// RetryError is what RetryAfter returns.
type RetryError struct {
	Delay time.Duration
	Err   error
}

func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns why the handler failed.
func (e *RetryError) Unwrap() error { return e.Err }

// DiscardError is what Discard returns.
type DiscardError struct{ Reason string }

func (e *DiscardError) Error() string { return "workers: discarded: " + e.Reason }

// SnoozeError is what Snooze returns.
type SnoozeError struct{ Delay time.Duration }

func (e *SnoozeError) Error() string { return "workers: snoozed for " + e.Delay.String() }

// PanicError is what a panic of a handler becomes. Middleware sees it as the
// handler's error.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value of the panic if that was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// outcomeVerb is what a settlement asks for.
type outcomeVerb uint8

const (
	verbDone outcomeVerb = iota
	verbResult
	verbRetry
	verbDiscard
	verbSnooze
)

const (
	headerServiceCode = "Nats-Service-Error-Code"
	headerServiceText = "Nats-Service-Error"
	failedCode        = "500"
	maxReason         = 240
)

var bodyDone = []byte("+ACK")

// settlement returns the message that tells a bridge what became of j, whose
// handler returned err. stopped: its context was cancelled by ErrStopping.
func settlement(j *Job, err error, stopped bool) (outcomeVerb, []byte, nats.Header) {
	var retry *RetryError
	var discard *DiscardError
	var snooze *SnoozeError
	switch {
	case err == nil && j.result == nil:
		return verbDone, bodyDone, nil
	case err == nil:
		return verbResult, append([]byte("+ACK "), j.result...), nil
	case errors.As(err, &discard):
		return verbDiscard, []byte(strings.TrimSpace("+TERM " + oneLine(discard.Reason))), nil
	case errors.As(err, &snooze):
		return verbSnooze, snoozeBody(snooze.Delay), nil
	case errors.As(err, &retry):
		return verbRetry, retryBody(retry.Delay), nil
	case stopped && (errors.Is(err, context.Canceled) || errors.Is(err, ErrStopping)):
		return verbSnooze, snoozeBody(0), nil
	}
	// The headers make it a -NAK with a reason, which the body has no room for.
	return verbRetry, []byte("-NAK"), nats.Header{headerServiceCode: {failedCode}, headerServiceText: {oneLine(err.Error())}}
}

func retryBody(d time.Duration) []byte { return nakBody(d, "}") }

func snoozeBody(d time.Duration) []byte { return nakBody(d, `,"spare":true}`) }

func nakBody(d time.Duration, rest string) []byte {
	return append(strconv.AppendInt([]byte(`-NAK {"delay":`), int64(max(d, 0)), 10), rest...)
}

// oneLine makes s fit for a header line: short and without line breaks.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxReason)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s))
}
