package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/delaybridge/delaybridge/job"
)

// Service is the name of the micro service.
const Service = "delaybridge"

// The verbs of the API.
const (
	Get        = "get"
	List       = "list"
	Cancel     = "cancel"
	Reschedule = "reschedule"
	Fire       = "fire"
	Requeue    = "requeue"
	Purge      = "purge"
	Pause      = "pause"
	Resume     = "resume"
	Stats      = "stats"
	Workers    = "workers"
	Bridges    = "bridges"
	Config     = "config"
)

// Time is a point in time: RFC 3339 with microseconds, the unit of due times. The
// zero Time is left out, or null.
type Time struct{ time.Time }

// timeLayout is how times are written.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// At returns t, zero for none.
func At(t job.Time) Time {
	if t == 0 {
		return Time{}
	}
	return Time{t.Time()}
}

// MarshalJSON writes t in UTC.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Format(timeLayout))
}

// ID is the id of a job: 1 to 255 bytes of any value. One that is no UTF-8 cannot be
// a JSON string; it is written as {"base64":"..."}, which is read too.
type ID string

// MarshalJSON writes the id.
func (id ID) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(id)) {
		return json.Marshal(string(id))
	}
	return json.Marshal(struct {
		Base64 []byte `json:"base64"`
	}{[]byte(id)})
}

// UnmarshalJSON reads either form.
func (id *ID) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			Base64 []byte `json:"base64"`
		}
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&o); err != nil {
			return fmt.Errorf("an id is a string or {\"base64\":\"...\"}: %w", err)
		}
		*id = ID(o.Base64)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("an id is a string or {\"base64\":\"...\"}: %w", err)
	}
	*id = ID(s)
	return nil
}

// Job is what a bridge knows of a job.
type Job struct {
	ID          ID        `json:"id"`
	Target      string    `json:"target"`
	State       job.State `json:"state"`
	Due         Time      `json:"due"`                    // when it was to run first
	Next        Time      `json:"next"`                   // pending: its next attempt; running: the end of its lease; else when it ended
	Attempt     uint32    `json:"attempt"`                // deliveries so far, the present one included
	MaxAttempts uint32    `json:"max_attempts,omitempty"` // deliveries before it is dead; none: no limit
	Expires     Time      `json:"expires,omitzero"`       // after that it does not run any more
	Owner       string    `json:"owner,omitempty"`        // running: bridge, or bridge/worker
	Stored      string    `json:"stored,omitempty"`       // redis, local, redis+local or memory
	Reason      string    `json:"reason,omitempty"`       // dead: why
	Bytes       int       `json:"bytes"`                  // of its payload
}

// ByID asks for one job: get, fire and requeue.
type ByID struct {
	ID ID `json:"id"`
}

// CancelRequest removes a job.
type CancelRequest struct {
	ID    ID        `json:"id"`
	State job.State `json:"state,omitempty"` // only if it is pending, or dead; none: either
}

// RescheduleRequest gives a pending job a new due time. In and At have the forms of
// the Delay-In and Delay-At headers; exactly one is given.
type RescheduleRequest struct {
	ID ID     `json:"id"`
	In string `json:"in,omitempty"`
	At string `json:"at,omitempty"`
}

// Change is the definite answer to cancel, reschedule, fire and requeue: it was
// done, or the job is running (by whom), or it has finished (for requeue: it is not
// dead), or nothing is known of it.
type Change struct {
	ID      ID         `json:"id"`
	Result  job.Result `json:"result"`
	Attempt uint32     `json:"attempt"`
	Owner   string     `json:"owner,omitempty"`
	Due     Time       `json:"due,omitzero"` // reschedule, fire and requeue that were done
}

// ListRequest asks for a page of jobs, in the order of Next.
type ListRequest struct {
	State  job.State `json:"state,omitempty"`  // pending (the default), running or dead
	Target string    `json:"target,omitempty"` // a target or a pattern; none: all
	Stored string    `json:"stored,omitempty"` // local: only what bridges' disks hold, also while Redis cannot be reached
	Limit  int       `json:"limit,omitempty"`  // 1 to 1000; none: 100
	Cursor string    `json:"cursor,omitempty"` // of the page before
}

// Page is a page of jobs. An empty Cursor means that it was the last one; a page
// may be short, or empty, without being the last.
type Page struct {
	Jobs   []Job  `json:"jobs"`
	Cursor string `json:"cursor,omitempty"`
}

// PurgeRequest removes all jobs of a target, or of a pattern, in one state.
type PurgeRequest struct {
	Target string    `json:"target"`           // > for all
	State  job.State `json:"state,omitempty"`  // pending or dead (the default)
	Cursor string    `json:"cursor,omitempty"` // of the answer before
}

// Purged says how many jobs were removed.
type Purged struct {
	Purged int    `json:"purged"`
	Cursor string `json:"cursor,omitempty"` // the time was up before all were looked at: go on with it
}

// TargetRequest pauses or resumes a target, or a pattern; > for all.
type TargetRequest struct {
	Target string `json:"target"`
}

// PauseState answers pause and resume: all that is paused now.
type PauseState struct {
	Paused []string `json:"paused"`
}

// StatsAnswer answers stats.
type StatsAnswer struct {
	Bridge  string     `json:"bridge"` // who answers
	Mode    string     `json:"mode"`   // redis, local or migrating
	Version string     `json:"version"`
	Started Time       `json:"started"`
	Jobs    job.Counts `json:"jobs"`         // in the shared store and on this bridge's disk
	Due     Time       `json:"due,omitzero"` // the next due time, if there are pending jobs
	Counted bool       `json:"counted"`      // false: Redis cannot be reached, and Jobs are those of this bridge's disk
	Local   int        `json:"local"`        // jobs that only this bridge's disk holds
	Flying  int        `json:"in_flight"`    // deliveries of this bridge that are not settled
	Workers int        `json:"workers"`      // that own jobs
	Paused  []string   `json:"paused"`       // targets and patterns
	Parked  []Parked   `json:"parked"`       // targets whose jobs wait because nobody takes them, at most 100
	Totals  Totals     `json:"totals"`       // of this bridge since it started
}

// Parked is a target that nobody takes jobs of.
type Parked struct {
	Target string `json:"target"`
	Reason string `json:"reason"`
}

// Totals count since the start of a bridge.
type Totals struct {
	Stored    uint64 `json:"stored"`
	Duplicate uint64 `json:"duplicate"`
	Refused   uint64 `json:"refused"`
	Published uint64 `json:"published"` // deliveries
	Completed uint64 `json:"completed"`
	Retried   uint64 `json:"retried"`
	Buried    uint64 `json:"buried"`  // dead-lettered
	Expired   uint64 `json:"expired"` // leases that ran out
}

// Worker is a worker that owns its jobs.
type Worker struct {
	ID       string   `json:"worker"`
	Subjects []string `json:"subjects"`
	Capacity int      `json:"capacity"`
	Free     int      `json:"free"`
	Running  int      `json:"running"` // deliveries of the answering bridge
	Directed bool     `json:"directed"`
	State    string   `json:"state"`   // live, suspect or leaving
	SeenMS   int64    `json:"seen_ms"` // milliseconds since its last heartbeat
}

// WorkersAnswer answers workers.
type WorkersAnswer struct {
	Bridge  string   `json:"bridge"`
	Workers []Worker `json:"workers"`
	LeftOff int      `json:"left_off,omitempty"` // workers that the answer had no room for
}

// Bridge is one bridge of the prefix.
type Bridge struct {
	ID           string `json:"bridge"`
	CircuitState string `json:"circuit_state"` // CLOSED, OPEN or HALF_OPEN
	Mode         string `json:"mode"`          // redis, local or migrating
	SeenMS       int64  `json:"seen_ms"`       // milliseconds since it was heard of; 0 for the one that answers
}

// BridgesAnswer answers bridges.
type BridgesAnswer struct {
	Bridges []Bridge `json:"bridges"`
}

// ConfigAnswer is the configuration that a bridge runs with, secrets left out.
type ConfigAnswer struct {
	Bridge string            `json:"bridge"`
	Config map[string]string `json:"config"` // by key, as in the configuration file
}

// Failure is the body of a refusal.
type Failure struct {
	Error *job.Error `json:"error"`
}
