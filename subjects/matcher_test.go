package subjects

import (
	"errors"
	"strings"
	"testing"
)

func TestMatcher(t *testing.T) {
	for _, tt := range []struct {
		patterns string // separated by spaces
		yes, no  string
	}{
		{"orders", "orders", "order orders.x orderss Orders x.orders"},
		{">", "orders a.b.c", ""},
		{"*", "orders", "a.b a.b.c"},
		{"orders.>", "orders.a orders.a.b", "orders orderss.a x.orders.a"},
		{"orders.*", "orders.a", "orders orders.a.b"},
		{"*.new", "orders.new x.new", "new a.b.new orders.news"},
		{"a.*.c.>", "a.b.c.d a.x.c.d.e", "a.b.c a.b.d.d"},
		{"*.*", "a.b", "a a.b.c"},
		{"*.>", "a.b a.b.c", "a"},
		{"a.b mail.>", "a.b mail.x", "a a.c mail"},
		{"a*", "a*", "ab a"}, // an ordinary character
	} {
		m, err := NewMatcher(strings.Fields(tt.patterns))
		if err != nil || m.Empty() {
			t.Errorf("NewMatcher(%q): %v, empty %v", tt.patterns, err, m.Empty())
		}
		for _, s := range strings.Fields(tt.yes) {
			if !m.Match(s) {
				t.Errorf("%q does not match %q", tt.patterns, s)
			}
		}
		for _, s := range append(strings.Fields(tt.no), "") {
			if m.Match(s) {
				t.Errorf("%q matches %q", tt.patterns, s)
			}
		}
	}
}

func TestEmptyMatcher(t *testing.T) {
	m, err := NewMatcher(nil)
	if err != nil || !m.Empty() || m.Match("orders") || m.Match("") {
		t.Errorf("NewMatcher(nil): %v, empty %v, matches %v", err, m.Empty(), m.Match("orders"))
	}
}

func TestIsPattern(t *testing.T) {
	for subject, want := range map[string]bool{"*": true, ">": true, "a.*": true, "*.a": true, "a.*.b": true, "a.>": true, "a": false, "a.b": false, "a*": false, "a.>b.c": false} {
		if IsPattern(subject) != want {
			t.Errorf("%s: %v, want %v", subject, !want, want)
		}
	}
}

func TestMatcherKeepsItsPatterns(t *testing.T) {
	patterns := []string{"orders"}
	m, err := NewMatcher(patterns)
	patterns[0] = ">"
	if err != nil || m.Match("mail") || !m.Match("orders") {
		t.Errorf("matcher changed with the caller's slice: %v", err)
	}
}

func TestNewMatcherRefuses(t *testing.T) {
	for _, p := range []string{"", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a b", "a\t", "a.\x00"} {
		if _, err := NewMatcher([]string{"orders", p}); !errors.Is(err, ErrName) {
			t.Errorf("NewMatcher(%q): %v, want ErrName", p, err)
		}
	}
}

// matchesSplit is Match by comparing lists of tokens.
func matchesSplit(pattern, subject string) bool {
	want, got := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, w := range want {
		if w == ">" {
			return len(got) > i
		}
		if i >= len(got) || w != "*" && w != got[i] {
			return false
		}
	}
	return len(want) == len(got)
}

func FuzzMatcher(f *testing.F) {
	for _, p := range []string{"orders", ">", "*", "a.>", "a.*", "*.b", "a.*.c.>", "*.*", "a*", "a..b", ">.a"} {
		for _, s := range []string{"orders", "a", "a.b", "a.b.c", "a.b.c.d", "a*"} {
			f.Add(p, s)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, subject string) {
		m, err := NewMatcher([]string{pattern})
		if err != nil {
			if !errors.Is(err, ErrName) {
				t.Fatalf("NewMatcher(%q): %v is not ErrName", pattern, err)
			}
			return
		}
		got := m.Match(subject)
		if subjectFlaw(subject) != "" {
			return // no subject that NATS delivers: any answer, but no panic
		}
		if want := matchesSplit(pattern, subject); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, subject, got, want)
		}
	})
}

func TestMatcherAllocations(t *testing.T) {
	m, err := NewMatcher([]string{"mail.>", "orders.*.new"})
	if err != nil {
		t.Fatal(err)
	}
	mustNotAllocate(t, func() {
		if !m.Match("orders.eu.new") {
			t.Fatal("no match")
		}
	})
}
