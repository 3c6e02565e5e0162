package adapter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// NATS decides who may publish to which subject. A bridge publishes for others: to the
// reply subject that a message names, to Delay-Reply-To, and to the workers that say
// what they take. What follows keeps it from doing so where they themselves may not.

// WorkerRule says which targets workers may take that own their jobs.
type WorkerRule struct {
	Name    string // of the worker; a * at the end stands for any rest
	Pattern string // of targets
}

const (
	keyReplies = "replies.allow"
	keyWorkers = "workers.allow"
)

// trust is what the configuration says of others.
type trust struct {
	replies subjects.Matcher
	workers []WorkerRule
}

func newTrust(cfg Config) (t trust, err error) {
	if t.replies, err = subjects.NewMatcher(cfg.AllowReplies); err != nil {
		return t, fmt.Errorf("%s: %w", keyReplies, err)
	}
	t.workers = cfg.AllowWorkers
	return t, checkWorkerRules(cfg.AllowWorkers)
}

func checkWorkerRules(rules []WorkerRule) error {
	for _, r := range rules {
		if name, _ := strings.CutSuffix(r.Name, "*"); r.Name != "*" && subjects.CheckWorkerID(name) != nil {
			return fmt.Errorf("%s: %q is no name of a worker; only its end can be a *", keyWorkers, r.Name)
		}
		if _, err := subjects.NewMatcher([]string{r.Pattern}); err != nil {
			return fmt.Errorf("%s: %w", keyWorkers, err)
		}
	}
	return nil
}

// reply reports whether answers and results may go to subject. Inboxes, and what the
// server makes of them between accounts, are always good: nobody works on what
// arrives there.
func (t *trust) reply(subject string) bool {
	return t.replies.Empty() || strings.HasPrefix(subject, inboxes) || strings.HasPrefix(subject, "_R_.") || t.replies.Match(subject)
}

// worker says why a worker may not take the jobs that it asks for.
func (t *trust) worker(name string, patterns []string) *job.Error {
	for _, p := range patterns {
		if !t.takes(name, p) {
			return job.ErrForbidden.With("worker %q may not take jobs of %q: no rule of %s allows it", name, cut(p, 64), keyWorkers)
		}
	}
	return nil
}

func (t *trust) takes(name, pattern string) bool {
	for _, r := range t.workers {
		prefix, open := strings.CutSuffix(r.Name, "*")
		if (name == prefix || open && strings.HasPrefix(name, prefix)) && covers(r.Pattern, pattern) {
			return true
		}
	}
	return len(t.workers) == 0
}

// covers reports whether all subjects of pattern are subjects of outer.
func covers(outer, pattern string) bool {
	o, p := strings.Split(outer, "."), strings.Split(pattern, ".")
	for i, want := range o {
		switch {
		case i >= len(p):
			return false
		case want == ">":
			return true
		case p[i] == ">" || want != "*" && want != p[i]:
			return false
		}
	}
	return len(o) == len(p)
}

// Answers reports whether an answer may be sent to the reply subject of a message.
func (b *Bridge) Answers(reply string) bool {
	return subjects.CheckReply(b.cfg.Prefix, reply) && b.trust.reply(reply)
}

var errReplyRefused = errors.New("the reply subject is no inbox and matches no pattern of " + keyReplies)
