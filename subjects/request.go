package subjects

import (
	"fmt"
	"strings"
)

// Form says which of the intake subjects a request came on.
type Form uint8

// The forms of an intake subject.
const (
	In Form = iota + 1 // <prefix>.in.<delay>.<target>
	At                 // <prefix>.at.<time>.<target>
	To                 // <prefix>.to.<target>
)

// Request is an intake subject taken apart.
type Request struct {
	Form   Form
	Spec   string // the delay or time as written, not yet read; empty for To
	Target string // not empty, not yet checked
}

// ParseRequest takes an intake subject apart. The parts share subject's
// memory. A subject without a target, or one that is no intake subject of
// prefix, is ErrTarget. The parts are checked by [ParseDelay] or [ParseTime]
// and by [CheckTarget].
func ParseRequest(prefix, subject string) (Request, error) {
	form, rest := cutForm(prefix, subject)
	r := Request{Form: form, Target: rest}
	switch form {
	case In, At:
		r.Spec, r.Target, _ = strings.Cut(rest, ".")
	case To:
	default:
		return Request{}, fmt.Errorf("%w: %s is no intake subject, publish to %s.in.<delay>.<target>, %s.at.<time>.<target> or %s.to.<target>",
			ErrTarget, quote(subject), prefix, prefix, prefix)
	}
	if r.Target == "" {
		return Request{}, fmt.Errorf("%w: %s has none, append it to the subject", ErrTarget, quote(subject))
	}
	return r, nil
}

// cutForm returns the form of an intake subject and what follows it; the form
// is zero when subject is none.
func cutForm(prefix, subject string) (Form, string) {
	rest, ok := cutPrefix(prefix, subject)
	if !ok {
		return 0, ""
	}
	verb, rest, _ := strings.Cut(rest, ".")
	switch verb {
	case "in":
		return In, rest
	case "at":
		return At, rest
	case "to":
		return To, rest
	}
	return 0, ""
}

// cutPrefix returns what follows "<prefix>." in subject.
func cutPrefix(prefix, subject string) (string, bool) {
	if len(subject) <= len(prefix) || !inPrefix(prefix, subject) {
		return "", false
	}
	return subject[len(prefix)+1:], true
}

// inPrefix reports whether subject is the prefix or lies under it.
func inPrefix(prefix, subject string) bool {
	return strings.HasPrefix(subject, prefix) &&
		(len(subject) == len(prefix) || subject[len(prefix)] == '.')
}

// IntakeSubjects returns the subjects that a bridge subscribes to for jobs.
func IntakeSubjects(prefix string) []string {
	return []string{prefix + ".in.>", prefix + ".at.>", prefix + ".to.>"}
}
