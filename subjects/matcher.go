package subjects

import (
	"fmt"
	"slices"
	"strings"
)

// Matcher matches subjects against patterns with the wildcards of NATS: a
// token * stands for one token, a last token > for one or more. The zero
// value has no patterns and matches nothing. It is safe for concurrent use.
type Matcher struct{ patterns []string }

// NewMatcher returns a Matcher of patterns. One that is no valid subscription
// subject is ErrName.
func NewMatcher(patterns []string) (Matcher, error) {
	for _, p := range patterns {
		if flaw := patternFlaw(p); flaw != "" {
			return Matcher{}, fmt.Errorf("%w: pattern %s: %s", ErrName, quote(p), flaw)
		}
	}
	return Matcher{slices.Clone(patterns)}, nil
}

// Match reports whether any of the patterns matches subject, which is one that
// [CheckTarget] takes.
func (m Matcher) Match(subject string) bool {
	for _, p := range m.patterns {
		if matches(p, subject) {
			return true
		}
	}
	return false
}

// Empty reports whether there are no patterns.
func (m Matcher) Empty() bool { return len(m.patterns) == 0 }

// IsPattern reports whether a subject that [NewMatcher] takes has wildcards.
func IsPattern(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "*" || token == ">" {
			return true
		}
	}
	return false
}

func matches(pattern, subject string) bool {
	for {
		want, wantRest, wantMore := strings.Cut(pattern, ".")
		if want == ">" {
			return subject != ""
		}
		got, gotRest, gotMore := strings.Cut(subject, ".")
		if got == "" || want != "*" && want != got {
			return false
		}
		if !wantMore || !gotMore {
			return wantMore == gotMore
		}
		pattern, subject = wantRest, gotRest
	}
}

// patternFlaw returns what is wrong with a pattern, "" for nothing.
func patternFlaw(pattern string) string {
	// Wildcards are the only thing that a pattern has beyond a subject, so it
	// is checked with them replaced.
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		if token == ">" && i < len(tokens)-1 {
			return "> must be the last token"
		}
		if token == "*" || token == ">" {
			tokens[i] = "x"
		}
	}
	return subjectFlaw(strings.Join(tokens, "."))
}
