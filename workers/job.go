package workers

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// Job is one delivery of a job. A handler may keep it, but its fields are
// not to be changed.
type Job struct {
	// ID names the job; it is the same for all its deliveries. Empty for a
	// message that no bridge sent.
	ID string
	// Target is the subject that the producer scheduled the job for.
	Target string
	// Due is when the job was due first.
	Due time.Time
	// Attempt is 1 for the first delivery; 0 for a message that no bridge sent.
	Attempt int
	// AckWait is the job's lease, which heartbeats renew.
	AckWait time.Duration
	// Header holds the producer's headers and those that the bridge added.
	Header nats.Header
	// Payload is the producer's message.
	Payload []byte

	token  string // names the delivery; empty: nobody waits for an outcome
	reply  string // where the delivery is claimed and settled
	result []byte
	ctx    context.Context // what the outcome's trace context is taken from

	// The rest is guarded by the worker's mutex.
	stage    stage
	arrived  time.Duration
	cancel   context.CancelCauseFunc // while the handler runs
	verb     outcomeVerb
	body     []byte // the request that is repeated until it is answered
	header   nats.Header
	sent     int           // how often it was
	sentAt   time.Duration // when it was, first
	repeatAt time.Duration
	pause    time.Duration // after an answer that says to try again
}

// SetResult sets what the job's Delay-Reply-To subject gets when the handler
// returns nil. b is not copied.
func (j *Job) SetResult(b []byte) { j.result = b }

// Token names this delivery, as the bridges do. It is empty when nobody waits
// for the outcome.
func (j *Job) Token() string { return j.token }

// stage is how far a delivery has come in the worker.
type stage uint8

const (
	stageArrived  stage = iota // through the queue group, not claimed yet
	stageClaiming              // the claim is not answered yet
	stageReady                 // ours, waits for a free handler
	stageRunning
	stageSettling // the outcome is not answered yet
	stageGone     // settled, lost or given back
)

// Headers of a delivery.
const (
	headerJobID   = "Delay-Job-Id"
	headerDue     = "Delay-Due"
	headerAttempt = "Delay-Attempt"
	headerAckWait = "Delay-Ack-Wait"
	headerToken   = "Delay-Token"
	headerTarget  = "Delay-Target"
)

const maxTokenLen = 512

// newJob reads a delivery. What its headers do not say, or not readably, stays
// zero.
func newJob(m *nats.Msg, prefix string, directed bool) *Job {
	j := &Job{Target: m.Subject, Header: m.Header, Payload: m.Data}
	if len(m.Header) == 0 {
		return j
	}
	j.ID = m.Header.Get(headerJobID)
	if target := m.Header.Get(headerTarget); directed && target != "" {
		j.Target = target
	}
	j.Due, _ = time.Parse(time.RFC3339Nano, m.Header.Get(headerDue))
	j.Attempt, _ = strconv.Atoi(m.Header.Get(headerAttempt))
	j.AckWait, _ = time.ParseDuration(m.Header.Get(headerAckWait))
	// Whoever may publish to the target could have named another reply subject.
	_, token, ok := subjects.ParseAck(prefix, m.Reply)
	if ok && isToken(token) && token == m.Header.Get(headerToken) {
		j.token, j.reply = token, m.Reply
	}
	return j
}

// isToken reports whether s can be a bridge's token. It becomes part of
// subjects and JSON, and whoever may publish to the target could have sent it.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return s != "" && len(s) <= maxTokenLen
}
