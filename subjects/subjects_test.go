package subjects

import (
	"strings"
	"testing"
)

func TestAppendAckSubject(t *testing.T) {
	k := goldenTokens[0]
	got := string(AppendAckSubject([]byte("> "), "acme.delay", "web-1", k.token))
	if want := "> acme.delay.ack.web-1." + k.text; got != want {
		t.Errorf("AppendAckSubject = %q, want %q", got, want)
	}
	bridge, token, ok := ParseAck("acme.delay", got[2:])
	if bridge != "web-1" || token != k.text || !ok {
		t.Errorf("ParseAck(%q) = %q, %q, %v", got[2:], bridge, token, ok)
	}
}

func TestParseAckRefuses(t *testing.T) {
	for _, s := range []string{
		"", "delay", "delay.", "delay.ack", "delay.ack.", "delay.ack.b1", "delay.ack.b1.", "delay.ack..token",
		"delay.ack.b1.to.ken", "delay.ack.b1.token.", "delay.nak.b1.token", "delay.acks.b1.token", "other.ack.b1.token",
		"delayed.ack.b1.token", "x.delay.ack.b1.token",
	} {
		if bridge, token, ok := ParseAck("delay", s); ok || bridge != "" || token != "" {
			t.Errorf("ParseAck(%q) = %q, %q, %v", s, bridge, token, ok)
		}
	}
}

func FuzzParseAck(f *testing.F) {
	for _, s := range []string{"delay.ack.b1.token", "delay.ack..x", "delay.ack.b1.a.b", "delay", "", "delay.ack.\x00.\xff"} {
		f.Add("delay", s)
	}
	f.Fuzz(func(t *testing.T, prefix, subject string) {
		bridge, token, ok := ParseAck(prefix, subject)
		if !ok {
			return
		}
		if prefix+".ack."+bridge+"."+token != subject || bridge == "" || token == "" || strings.Contains(bridge+token, ".") {
			t.Fatalf("ParseAck(%q, %q) = %q, %q", prefix, subject, bridge, token)
		}
	})
}

func TestBuiltSubjects(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{AckWildcard("acme.delay", "b1"), "acme.delay.ack.b1.*"},
		{Event("delay", "data_loss"), "delay.event.data_loss"},
		{Presence("delay", "b1"), "delay.sys.bridge.b1"},
		{Takeover("delay"), "delay.sys.takeover"},
		{Started("delay"), "delay.sys.started"},
		{State("acme.delay"), "acme.delay.sys.state"},
		{Canary("delay"), "delay.sys.canary"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestAckWildcardMatchesItsOwnSubjects(t *testing.T) {
	m, err := NewMatcher([]string{AckWildcard("delay", "b1")})
	if err != nil {
		t.Fatal(err)
	}
	own := AppendAckSubject(nil, "delay", "b1", goldenTokens[0].token)
	other := AppendAckSubject(nil, "delay", "b2", goldenTokens[0].token)
	if !m.Match(string(own)) || m.Match(string(other)) {
		t.Errorf("%q: own %v, other bridge's %v", AckWildcard("delay", "b1"), m.Match(string(own)), m.Match(string(other)))
	}
}

func TestParseAckAllocations(t *testing.T) {
	subject := "delay.ack.b1." + goldenTokens[0].text
	mustNotAllocate(t, func() {
		if _, _, ok := ParseAck("delay", subject); !ok {
			t.Fatal(subject)
		}
	})
}

func BenchmarkParseAck(b *testing.B) {
	b.ReportAllocs()
	subject := "delay.ack.b1." + goldenTokens[0].text
	for b.Loop() {
		if _, _, ok := ParseAck("delay", subject); !ok {
			b.Fatal(subject)
		}
	}
}

func TestAPISubjects(t *testing.T) {
	for _, target := range []string{"", "orders", "orders.x.y"} {
		got, ok := APITarget("a.b", "get", API("a.b", "get", target))
		if got != target || !ok {
			t.Errorf("target %q: %q, %v", target, got, ok)
		}
	}
	for _, s := range []string{"a.b.api.gets", "a.b.api.getx.y", "a.b.api", "a.api.get", ""} {
		if target, ok := APITarget("a.b", "get", s); ok {
			t.Errorf("%q is taken for get, target %q", s, target)
		}
	}
}
