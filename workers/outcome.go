package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
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

// maxReason is how many bytes of an error's text are sent.
const maxReason = 240

var bodyDone = []byte("+ACK")

// settlement returns the message that tells a bridge what became of j, whose
// handler returned err. stopped: its context was cancelled by ErrStopping.
func settlement(j *Job, err error, stopped bool) (outcomeVerb, []byte) {
	var retry *RetryError
	var discard *DiscardError
	var snooze *SnoozeError
	switch {
	case err == nil && j.result == nil:
		return verbDone, bodyDone
	case err == nil:
		return verbResult, append([]byte("+ACK "), j.result...)
	case errors.As(err, &discard):
		return verbDiscard, []byte(strings.TrimSpace("+TERM " + oneLine(discard.Reason)))
	case errors.As(err, &snooze):
		return verbSnooze, snoozeBody(snooze.Delay)
	case errors.As(err, &retry):
		return verbRetry, nak{delay(retry.Delay), false, oneLine(err.Error())}.body()
	case stopped && (errors.Is(err, context.Canceled) || errors.Is(err, ErrStopping)):
		return verbSnooze, snoozeBody(0)
	}
	return verbRetry, nak{nil, false, oneLine(err.Error())}.body()
}

// nak is what follows -NAK.
type nak struct {
	Delay  *time.Duration `json:"delay,omitempty"` // nil: by the job's backoff
	Spare  bool           `json:"spare,omitempty"`
	Reason string         `json:"reason,omitempty"`
}

func delay(d time.Duration) *time.Duration {
	d = max(d, 0)
	return &d
}

func (n nak) body() []byte {
	data, _ := json.Marshal(n) // numbers and text cannot fail
	return append([]byte("-NAK "), data...)
}

func snoozeBody(d time.Duration) []byte { return nak{delay(d), true, ""}.body() }

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
