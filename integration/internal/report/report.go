// Package report is what a worker in a process of its own tells the test that
// started it: a line of JSON for each thing that happens, on its standard
// output.
package report

import (
	"time"

	"github.com/nats-io/nats.go"
)

// The events of a worker.
const (
	Ready     = "ready"     // it is about to take jobs
	Known     = "known"     // a bridge has answered a heartbeat
	Started   = "started"   // its handler was called
	Done      = "done"      // its handler has returned, and the job is to be completed
	Confirmed = "confirmed" // a bridge has answered the completion
	Stopped   = "stopped"   // its handler has returned because its context ended
	Lost      = "lost"      // the library was told that the job is not its any more
)

// Report is one event.
type Report struct {
	Event string
	At    int64 // Unix microseconds

	// The job, but for Ready.
	Target  string      `json:",omitempty"`
	Header  nats.Header `json:",omitempty"` // with Started only
	Payload []byte      `json:",omitempty"` // with Started only
	ID      string      `json:",omitempty"`
	Attempt uint32      `json:",omitempty"`
	Cause   string      `json:",omitempty"` // of Stopped

	// Worker is filled in by who reads the line.
	Worker string `json:"-"`
}

// Time is when it happened.
func (r Report) Time() time.Time { return time.UnixMicro(r.At) }
