package subjects

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	for _, tt := range []struct {
		prefix, subject string
		want            Request
	}{
		{"delay", "delay.in.5s.orders", Request{In, "5s", "orders"}},
		{"delay", "delay.in.1h30m.orders.new.eu", Request{In, "1h30m", "orders.new.eu"}},
		{"delay", "delay.at.1764495000.orders", Request{At, "1764495000", "orders"}},
		{"delay", "delay.at.20261130T093000Z.a.b", Request{At, "20261130T093000Z", "a.b"}},
		{"delay", "delay.to.orders", Request{To, "", "orders"}},
		{"delay", "delay.to.in.5s.orders", Request{To, "", "in.5s.orders"}},
		{"acme.delay", "acme.delay.in.5s.orders.new", Request{In, "5s", "orders.new"}},
		{"acme.delay", "acme.delay.to.delay.x", Request{To, "", "delay.x"}},
		// A fraction falls apart at its point; ParseDelay then misses the unit.
		{"delay", "delay.in.1.5h.orders", Request{In, "1", "5h.orders"}},
		// Read by ParseDelay and CheckTarget, which refuse them.
		{"delay", "delay.in..orders", Request{In, "", "orders"}},
		{"delay", "delay.in.soon.a..b", Request{In, "soon", "a..b"}},
		{"delay", "delay.to..", Request{To, "", "."}},
		{"delay", "delay.to.delay.in.5s.x", Request{To, "", "delay.in.5s.x"}},
	} {
		got, err := ParseRequest(tt.prefix, tt.subject)
		if err != nil || got != tt.want {
			t.Errorf("ParseRequest(%q, %q) = %+v, %v, want %+v", tt.prefix, tt.subject, got, err, tt.want)
		}
	}
}

func TestParseRequestRefuses(t *testing.T) {
	for _, tt := range []struct{ prefix, subject string }{
		{"delay", "delay.in.5s"},
		{"delay", "delay.in.5s."},
		{"delay", "delay.in."},
		{"delay", "delay.in"},
		{"delay", "delay.at.1764495000"},
		{"delay", "delay.to"},
		{"delay", "delay.to."},
		{"delay", "delay"},
		{"delay", "delay."},
		{"delay", ""},
		{"delay", "delay.IN.5s.orders"},
		{"delay", "delay.into.5s.orders"},
		{"delay", "delay.api.get.orders"},
		{"delay", "delayed.in.5s.orders"},
		{"delay", "orders.in.5s.x"},
		{"acme.delay", "delay.in.5s.orders"},
		{"acme.delay", "acme.in.5s.orders"},
		{"delay", "acme.delay.in.5s.orders"},
	} {
		got, err := ParseRequest(tt.prefix, tt.subject)
		if !errors.Is(err, ErrTarget) || got != (Request{}) {
			t.Errorf("ParseRequest(%q, %q) = %+v, %v, want ErrTarget", tt.prefix, tt.subject, got, err)
		}
	}
}

func TestIntakeSubjects(t *testing.T) {
	want := []string{"acme.delay.in.>", "acme.delay.at.>", "acme.delay.to.>"}
	if got := IntakeSubjects("acme.delay"); !slices.Equal(got, want) {
		t.Errorf("IntakeSubjects = %q, want %q", got, want)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		"delay.in.5s.orders", "delay.at.1764495000.a.b", "delay.to.orders", "delay.to", "delay.in.5s.",
		"delay.in..x", "delay..in.x", "delay", "", ".", "delay.to.\x00", "acme.delay.in.1h.x",
	} {
		f.Add("delay", s)
		f.Add("acme.delay", s)
	}
	verbs := map[Form]string{In: "in.", At: "at.", To: "to."}
	f.Fuzz(func(t *testing.T, prefix, subject string) {
		r, err := ParseRequest(prefix, subject)
		if err != nil {
			if !errors.Is(err, ErrTarget) {
				t.Fatalf("ParseRequest(%q, %q): %v is not ErrTarget", prefix, subject, err)
			}
			return
		}
		rebuilt := prefix + "." + verbs[r.Form] + r.Spec + "." + r.Target
		if r.Form == To {
			rebuilt = prefix + "." + verbs[r.Form] + r.Target
		}
		if rebuilt != subject || r.Target == "" || strings.Contains(r.Spec, ".") {
			t.Fatalf("ParseRequest(%q, %q) = %+v", prefix, subject, r)
		}
	})
}

func TestParseRequestAllocations(t *testing.T) {
	mustNotAllocate(t, func() {
		r, err := ParseRequest("acme.delay", "acme.delay.in.1h30m.orders.new.eu")
		if err != nil || r.Form != In {
			t.Fatal(r, err)
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest("delay", "delay.in.1h30m.orders.new.eu"); err != nil {
			b.Fatal(err)
		}
	}
}

// mustNotAllocate fails the test if fn allocates memory.
func mustNotAllocate(t *testing.T, fn func()) {
	t.Helper()
	if n := testing.AllocsPerRun(1000, fn); n != 0 {
		t.Errorf("%v allocations per run, want none", n)
	}
}
