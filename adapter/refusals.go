package adapter

import (
	"regexp"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

// violation is how the server says that a subject is not allowed.
var violation = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]+)"`)

// refusals tells the operator what the server does not allow this bridge. Each kind
// of subject has its own pace: a target must not hide that answers go nowhere.
type refusals struct {
	mu   sync.Mutex
	logs map[string]*limitedLog
}

// of returns the log of refusals of one kind.
func (r *refusals) of(kind string) *limitedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs == nil {
		r.logs = make(map[string]*limitedLog)
	}
	l := r.logs[kind]
	if l == nil {
		l = new(limitedLog)
		r.logs[kind] = l
	}
	return l
}

// Refused returns the subject that err says the server does not allow, and whether
// to publish to or to subscribe to; ok is false when it says something else.
func Refused(err error) (subject string, publish, ok bool) {
	m := violation.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false, false
	}
	return m[2], strings.EqualFold(m[1], "publish"), true
}

// WatchErrors makes a connection of this bridge report what goes wrong on it, and
// what the server refuses.
func (b *Bridge) WatchErrors(nc *nats.Conn) {
	nc.SetErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
		subject, publish, ok := Refused(err)
		switch {
		case !ok:
			b.log.conn.Log(b.cfg.Logger, "NATS connection", "error", err)
		case publish:
			b.publishRefused(subject, nc == b.out)
		default:
			b.subscribeRefused(subject)
		}
	})
}

// subscribeRefused logs that the server has refused a subscription.
func (b *Bridge) subscribeRefused(subject string) {
	allow := subject
	if strings.HasPrefix(subject, inboxes) {
		allow = inboxes + ">"
	}
	b.refusals.of("subscribe "+allow).Log(b.cfg.Logger, "the server does not let this bridge subscribe: allow it in the bridge's permissions",
		"subject", subject, "allow", allow)
}

// publishRefused logs that the server has refused to publish to subject, and parks
// what was to go to that target.
func (b *Bridge) publishRefused(subject string, dispatching bool) {
	allow, lost := b.publishes(subject)
	kind := allow
	if allow == subject { // there may be any number of them
		kind = "other"
	}
	b.refusals.of("publish "+kind).Log(b.cfg.Logger, "the server does not let this bridge publish: allow it in the bridge's permissions",
		"subject", subject, "allow", allow, "without", lost)
	if !dispatching {
		return
	}
	if worker, ok := subjects.ParseWorker(b.cfg.Prefix, subjects.KindJob, subject); ok {
		b.settler.add(b.unanswered(b.disp.refusedBy(worker))...)
		return
	}
	b.settler.add(b.park(b.disp.refused(subject), noPermission)...)
}

const inboxes = "_INBOX."

// publishes returns the pattern that has to be allowed so that a bridge can publish
// to subject, and what is lost without it.
func (b *Bridge) publishes(subject string) (allow, lost string) {
	own, ok := strings.CutPrefix(subject, b.cfg.Prefix+".")
	switch {
	case strings.HasPrefix(subject, inboxes):
		return inboxes + ">", "producers and workers get no answers"
	case !ok:
		return subject, "a target gets no jobs, or an answer is not sent"
	}
	kind, _, _ := strings.Cut(own, ".")
	allow = subjects.WorkerWildcard(b.cfg.Prefix, kind)
	switch kind {
	case "event":
		return b.cfg.Prefix + ".event.>", "events reach nobody"
	case "sys":
		return b.cfg.Prefix + ".sys.>", "bridges do not hear of each other"
	case subjects.KindJob:
		return allow, "jobs are not sent to workers themselves"
	case subjects.KindPing:
		return allow, "the death of a worker is noticed by its heartbeats alone"
	case subjects.KindOwner:
		return allow, "other bridges do not know which slots of workers are taken"
	}
	return subject, "an answer is not sent"
}
