package adapter

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// Limits of what a producer may ask for.
const (
	maxIDLen        = 255
	maxBackoffSteps = 32
	// addedHeaders is what a delivery's own headers may take beyond id, target
	// and trace context (which may be written anew by the bridge).
	addedHeaders = 512
)

// request is what a producer's message asks for, while it is being read.
type request struct {
	job       job.Job
	now       job.Time
	seen      []string // the control headers read so far
	times     int      // how many time sources were given
	expiresIn time.Duration
	hasID     bool
	journal   bool
}

// parse reads a message on an intake subject into a job that is ready for the
// store. Whatever is wrong with it is the error; nothing asked for is ignored.
func (b *Bridge) parse(m *nats.Msg, now job.Time, j *job.Job) *job.Error {
	req, err := subjects.ParseRequest(b.cfg.Prefix, m.Subject)
	if err != nil {
		return job.ErrTarget.With("%v", err)
	}
	if err := b.checkTarget(req.Target); err != nil {
		return err
	}
	r := request{now: now, expiresIn: -1, journal: b.cfg.JournalAll, job: job.Job{
		Target: req.Target, Payload: m.Data, AckWait: b.cfg.AckWait, MaxAttempts: uint32(max(0, b.cfg.MaxAttempts)),
	}}
	if err := r.subjectTime(req); err != nil {
		return job.ErrSchedule.With("%v", err)
	}
	if len(m.Header) == 0 && m.Size() > len(m.Subject)+len(m.Reply)+len(m.Data) {
		return job.ErrHeader.With("the headers of the message are not readable")
	}
	if err := r.headers(b, m.Header); err != nil {
		return err
	}
	if err := r.finish(b); err != nil {
		return err
	}
	if size, most := deliverySize(&r.job), b.out.MaxPayload(); most > 0 && int64(size) > most {
		return job.ErrTooLarge.With("the delivery would have %d bytes with its headers, the server takes %d", size, most)
	}
	*j = r.job
	return nil
}

// checkTarget says why the bridge may not publish to target.
func (b *Bridge) checkTarget(target string) *job.Error {
	if err := subjects.CheckTarget(b.cfg.Prefix, target); err != nil {
		return job.ErrTarget.With("%v", err)
	}
	if !b.allowed(target) {
		return job.ErrForbidden.With("target %q matches no pattern of %s", cut(target, 64), keyAllow)
	}
	return nil
}

func (b *Bridge) allowed(target string) bool {
	allow := b.allow.Load()
	return allow.Empty() || allow.Match(target)
}

// subjectTime reads the time that the subject carries.
func (r *request) subjectTime(req subjects.Request) error {
	switch req.Form {
	case subjects.In:
		d, err := subjects.ParseDelay(req.Spec)
		if err != nil {
			return err
		}
		r.dueIn(d)
	case subjects.At:
		t, err := subjects.ParseTime(req.Spec)
		if err != nil {
			return err
		}
		r.dueAt(t)
	}
	return nil
}

func (r *request) dueIn(d time.Duration) {
	r.times++
	r.job.Due = r.now.Add(d)
}

func (r *request) dueAt(t time.Time) {
	r.times++
	r.job.Due = job.At(t)
}

// headers reads the control headers and keeps the others. Names are taken in
// order, so that a job has the same record whatever order a map has.
func (r *request) headers(b *Bridge, h nats.Header) *job.Error {
	if len(h) == 0 {
		return nil
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		control := controlOf(name)
		if control == "" {
			if err := r.keep(name, h[name]); err != nil {
				return err
			}
			continue
		}
		if control == stripped {
			continue
		}
		if len(h[name]) != 1 || slices.Contains(r.seen, control) {
			return controlError(control, errors.New("given more than once"))
		}
		r.seen = append(r.seen, control)
		if err := r.control(b, control, strings.Trim(h[name][0], " \t")); err != nil {
			return err
		}
	}
	return nil
}

// keep takes in a header that travels with the job, unless it could not be sent
// on as it is.
func (r *request) keep(name string, values []string) *job.Error {
	if strings.ContainsFunc(name, notInHeaderName) {
		return job.ErrHeader.With("header name %q: only printable ASCII without space and \"(),/:;<=>?@[\\]{} can be delivered", cut(name, 64))
	}
	for _, v := range values {
		if strings.Contains(v, "\r") {
			return job.ErrHeader.With("header %q: a carriage return in a value cannot be delivered", cut(name, 64))
		}
		r.job.Header = append(r.job.Header, job.Field{Name: name, Value: v})
	}
	return nil
}

// notInHeaderName reports characters that the NATS client refuses to send in a
// header name.
func notInHeaderName(c rune) bool {
	return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
}

// stripped stands for headers that would act on the server when they came
// with the delivery, and are dropped.
const stripped = "-"

// controlOf returns the lower-case name of a control header, stripped, or ""
// for a header that travels with the job.
func controlOf(name string) string {
	if len(name) < 5 || (name[0]|0x20 != 'd' && name[0]|0x20 != 'n') {
		return ""
	}
	lower := strings.ToLower(name)
	switch {
	case strings.HasPrefix(lower, "delay-"), lower == "nats-msg-id", strings.HasPrefix(lower, "nats-schedule"):
		return lower
	case strings.HasPrefix(lower, "nats-expected-"), lower == "nats-rollup", lower == "nats-ttl", lower == "nats-request-info":
		return stripped
	}
	return ""
}

// controlError is the refusal of a control header's value.
func controlError(name string, err error) *job.Error {
	switch name {
	case "delay-in", "delay-at":
		return job.ErrSchedule.With("%s: %v", name, err)
	}
	if strings.HasPrefix(name, "nats-schedule") {
		return job.ErrSchedule.With("%s: %v", name, err)
	}
	return job.ErrHeader.With("%s: %v", name, err)
}

// control applies one control header.
func (r *request) control(b *Bridge, name, v string) *job.Error {
	if err := r.apply(b, name, v); err != nil {
		var refusal *job.Error
		if errors.As(err, &refusal) {
			return refusal
		}
		return controlError(name, err)
	}
	return nil
}

func (r *request) apply(b *Bridge, name, v string) (err error) {
	switch name {
	case "nats-msg-id":
		r.job.ID, r.hasID = v, true
		if v == "" || len(v) > maxIDLen {
			err = errors.New("an id has 1 to 255 bytes")
		}
	case "delay-in":
		var d time.Duration
		d, err = subjects.ParseHeaderDelay(v)
		r.dueIn(d)
	case "delay-at":
		var t time.Time
		t, err = subjects.ParseHeaderTime(v)
		r.dueAt(t)
	case "nats-schedule":
		var t time.Time
		t, err = subjects.ParseNatsSchedule(v)
		r.dueAt(t)
	case "delay-replace":
		r.job.Replace, err = strconv.ParseBool(v)
	case "delay-max-attempts":
		var n uint64
		n, err = strconv.ParseUint(v, 10, 31)
		r.job.MaxAttempts = uint32(n)
	case "delay-ack-wait":
		r.job.AckWait, err = parseAckWait(v)
	case "delay-backoff":
		r.job.Backoff, err = parseBackoff(v, b.cfg.MaxDelay)
	case "delay-expires":
		err = r.expires(v)
	case "delay-ack":
		r.job.Ack, err = parseAckMode(v)
	case "delay-reply-to":
		r.job.ReplyTo = v
		err = b.checkReplyTo(v)
	case "delay-durability":
		err = r.durability(b, v)
	default:
		err = errors.New("no such control header; see the list in the documentation")
		if strings.HasPrefix(name, "nats-schedule") {
			err = errors.New("recurring and other schedule headers are not supported, only Nats-Schedule: @at <time>")
		}
	}
	return err
}

// checkReplyTo says why the bridge may not publish a result to subject: the
// rules for targets, but that an inbox is always allowed.
func (b *Bridge) checkReplyTo(subject string) error {
	if err := subjects.CheckReplyTo(b.cfg.Prefix, subject); err != nil {
		return err
	}
	if !b.trust.reply(subject) {
		return job.ErrForbidden.With("delay-reply-to: %q is no inbox and matches no pattern of %s", cut(subject, 64), keyReplies)
	}
	if !strings.HasPrefix(subject, inboxes) && !b.allowed(subject) {
		return job.ErrForbidden.With("delay-reply-to: %q matches no pattern of %s", cut(subject, 64), keyAllow)
	}
	return nil
}

// durability reads the header of that name.
func (r *request) durability(b *Bridge, v string) error {
	if !strings.EqualFold(v, "local") {
		return errors.New("only \"local\" is known")
	}
	if b.cfg.Journal == NoJournal {
		return job.ErrUnavailable.With("delay-durability: this bridge keeps no local journal; leave the header out")
	}
	r.journal = true
	return nil
}

func parseAckWait(v string) (time.Duration, error) {
	d, err := subjects.ParseHeaderDelay(v)
	if err == nil && (d <= 0 || d > job.MaxAckWait) {
		err = errors.New("must be over 0 and at most 49 days")
	}
	return d, err
}

func parseBackoff(v string, most time.Duration) ([]time.Duration, error) {
	parts := strings.Split(v, ",")
	if len(parts) > maxBackoffSteps {
		return nil, errors.New("more than 32 steps")
	}
	steps := make([]time.Duration, len(parts))
	for i, p := range parts {
		d, err := subjects.ParseHeaderDelay(p)
		if err == nil && d > most {
			err = errors.New("a step is longer than " + keyMaxDelay)
		}
		if err != nil {
			return nil, err
		}
		steps[i] = d
	}
	return steps, nil
}

func parseAckMode(v string) (job.AckMode, error) {
	switch strings.ToLower(v) {
	case "worker":
		return job.AckWorker, nil
	case "stream":
		return job.AckStream, nil
	case "none":
		return job.AckNone, nil
	}
	return 0, errors.New("must be worker, stream or none")
}

// expires reads a duration after due or a time.
func (r *request) expires(v string) error {
	if d, err := subjects.ParseHeaderDelay(v); err == nil {
		r.expiresIn = d
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		return errors.New("must be a duration after due, such as 1h, or an RFC 3339 time")
	}
	r.job.Expires = max(job.At(t), 1) // zero would be "not given"
	return nil
}

// finish checks what depends on more than one part of the message.
func (r *request) finish(b *Bridge) *job.Error {
	switch {
	case r.times == 0:
		return job.ErrSchedule.With("no time given: use delay.in, delay.at, Delay-In, Delay-At or Nats-Schedule")
	case r.times > 1:
		return job.ErrSchedule.With("ambiguous: more than one of the subject, Delay-In, Delay-At and Nats-Schedule give a time")
	case r.job.Replace && !r.hasID:
		return job.ErrHeader.With("delay-replace: needs Nats-Msg-Id, the id of the job to replace")
	}
	if err := b.checkDue(r.job.Due, r.now); err != nil {
		return err
	}
	if r.journal && b.cfg.Journal == WithJournal {
		r.job.Journal = b.cfg.ID
	}
	switch {
	case r.expiresIn >= 0:
		r.job.Expires = max(r.job.Due.Add(r.expiresIn), 1)
	case r.job.Expires == 0:
		// A job asked for in the past runs at once: its time starts now.
		r.job.Expires = max(r.job.Due, r.now).Add(b.cfg.Expires)
	}
	return nil
}

// checkDue says why a job may not be due at that time.
func (b *Bridge) checkDue(due, now job.Time) *job.Error {
	switch {
	case due <= 0:
		return job.ErrSchedule.With("time out of range: before 1970")
	case due.Sub(now) > b.cfg.MaxDelay || due < now-farPast || due > now+farPast:
		return job.ErrSchedule.With("time out of range: more than %v (%s) ahead", b.cfg.MaxDelay, keyMaxDelay)
	}
	return nil
}

// farPast is more than a time.Duration holds, in microseconds: beyond it,
// differences of times overflow.
const farPast = job.Time(250 * 365 * 24 * time.Hour / time.Microsecond)

// deliverySize is an upper bound of the size that the server compares with
// max_payload.
func deliverySize(j *job.Job) int {
	const line = len(": \r\n")
	size := addedHeaders + len(j.Payload) + 2*max(len(j.ID), 12) + (len(j.ID)+64)*4/3
	for _, f := range j.Header {
		size += len(f.Name) + len(f.Value) + line
	}
	return size
}
