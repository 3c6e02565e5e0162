package subjects

import (
	"fmt"
	"strings"
)

// maxTarget is the length of a target, in bytes, that stores can keep.
const maxTarget = 255

// What can be wrong with a subject.
const (
	flawMissing   = "empty"
	flawLong      = "longer than 255 bytes"
	flawToken     = "empty token"
	flawWildcard  = "wildcards cannot be published to"
	flawControl   = "white space or control character"
	flawReserved  = "reserved for NATS"
	flawOwnPrefix = "reserved for the bridge"
)

// CheckTarget returns nil when jobs may be published to target, else
// ErrTarget: a target has 1 to 255 bytes and no empty token, wildcard, white
// space or control character; it is not reserved for NATS (a first token that
// begins with $ or is _INBOX, _R_ or _GR_) and is neither prefix nor under it.
// Other bytes are legal, as NATS has it. It does not allocate for a good one.
func CheckTarget(prefix, target string) error {
	if flaw := targetFlaw(prefix, target, false); flaw != "" {
		return fmt.Errorf("%w: %s: %s", ErrTarget, quote(target), flaw)
	}
	return nil
}

// CheckReplyTo checks the subject for a worker's result: as [CheckTarget], but
// inboxes (_INBOX.>) are allowed.
func CheckReplyTo(prefix, subject string) error {
	if flaw := targetFlaw(prefix, subject, true); flaw != "" {
		return fmt.Errorf("%w: reply subject %s: %s", ErrTarget, quote(subject), flaw)
	}
	return nil
}

// CheckReply reports whether an answer may be sent to the reply subject of a
// message: it is one that can be published to, does not begin with $ and is
// neither prefix nor under it. Inboxes and routed replies of any length are
// good.
func CheckReply(prefix, subject string) bool {
	return subjectFlaw(subject) == "" && subject[0] != '$' && !inPrefix(prefix, subject)
}

// FirstToken returns the first token of target.
func FirstToken(target string) string {
	first, _, _ := strings.Cut(target, ".")
	return first
}

// targetFlaw returns what is wrong with target, "" for nothing.
func targetFlaw(prefix, target string, inbox bool) string {
	switch {
	case len(target) > maxTarget:
		return flawLong
	case inPrefix(prefix, target):
		return flawOwnPrefix
	case isReserved(target) && !(inbox && strings.HasPrefix(target, "_INBOX.")):
		return flawReserved
	}
	return subjectFlaw(target)
}

func isReserved(target string) bool {
	switch first := FirstToken(target); first {
	case "_INBOX", "_R_", "_GR_":
		return true
	default:
		return strings.HasPrefix(first, "$")
	}
}

// subjectFlaw returns what keeps subject from being published to, "" for
// nothing.
func subjectFlaw(subject string) string {
	if subject == "" {
		return flawMissing
	}
	start := 0
	for i := 0; i < len(subject); i++ {
		switch c := subject[i]; {
		case c <= ' ' || c == 0x7f:
			return flawControl
		case c == '.':
			if flaw := tokenFlaw(subject[start:i]); flaw != "" {
				return flaw
			}
			start = i + 1
		}
	}
	return tokenFlaw(subject[start:])
}

// tokenFlaw is about whole tokens: in "a*b" the star is an ordinary character.
func tokenFlaw(token string) string {
	switch token {
	case "":
		return flawToken
	case "*", ">":
		return flawWildcard
	}
	return ""
}
