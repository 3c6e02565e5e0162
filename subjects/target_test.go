package subjects

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

var goodTargets = []string{
	"orders", "orders.new", "o", "a.b.c.d", "delayed", "delayed.x", "orders.delay", "orders.$x", "or$ders",
	"orders._INBOX", "_INBOXES.x", "_inbox.x", "_R_x", "_GR_1.x", "_", "Delay.x", "a*b", "*a", "a>", ">>", "**", "a-b_c",
	"\u00fc.\u65e5\u672c", "\xff\xfe", "{x}", "a:b/c", strings.Repeat("x", 255),
}

// Targets that are refused, and a word of why.
var badTargets = []struct{ target, why string }{
	{"", "empty"},
	{".", "empty token"},
	{".orders", "empty token"},
	{"orders.", "empty token"},
	{"orders..new", "empty token"},
	{"*", "wildcard"},
	{">", "wildcard"},
	{"orders.*", "wildcard"},
	{"orders.>", "wildcard"},
	{"*.new", "wildcard"},
	{"orders.*.new", "wildcard"},
	{"orders.>.new", "wildcard"},
	{"orders new", "white space"},
	{" orders", "white space"},
	{"orders ", "white space"},
	{"orders\t", "white space"},
	{"orders\r\nnew", "white space"},
	{"orders\x00", "control"},
	{"orders\x1f", "control"},
	{"orders\x7f", "control"},
	{strings.Repeat("x", 256), "255 bytes"},
	{strings.Repeat("\u00fc", 128), "255 bytes"},
	{"$", "NATS"},
	{"$SYS", "NATS"},
	{"$JS.API.STREAM.DELETE.x", "NATS"},
	{"$KV.bucket.key", "NATS"},
	{"$x.y", "NATS"},
	{"_R_", "NATS"},
	{"_R_.x", "NATS"},
	{"_GR_", "NATS"},
	{"_GR_.x.y", "NATS"},
	{"_INBOX", "NATS"},
	{"delay", "bridge"},
	{"delay.x", "bridge"},
	{"delay.in.5s.orders", "bridge"},
	{"delay.ack.b.token", "bridge"},
}

func TestCheckTarget(t *testing.T) {
	for _, target := range goodTargets {
		if err := CheckTarget("delay", target); err != nil {
			t.Errorf("CheckTarget(%q): %v", target, err)
		}
		if err := CheckReplyTo("delay", target); err != nil {
			t.Errorf("CheckReplyTo(%q): %v", target, err)
		}
	}
	for _, tt := range badTargets {
		if err := CheckTarget("delay", tt.target); !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("CheckTarget(%q): %v, want ErrTarget with %q", tt.target, err, tt.why)
		}
		if err := CheckReplyTo("delay", tt.target); !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("CheckReplyTo(%q): %v, want ErrTarget with %q", tt.target, err, tt.why)
		}
	}
}

func TestCheckTargetWithLongPrefix(t *testing.T) {
	for target, good := range map[string]bool{
		"acme": true, "acme.orders": true, "delay": true, "delay.x": true, "acme.delayed": true, "x.acme.delay": true,
		"acme.delay": false, "acme.delay.x": false, "acme.delay.": false,
	} {
		if err := CheckTarget("acme.delay", target); (err == nil) != good {
			t.Errorf("CheckTarget(acme.delay, %q): %v", target, err)
		}
		if got := CheckReply("acme.delay", target); got != good {
			t.Errorf("CheckReply(acme.delay, %q) = %v", target, got)
		}
	}
}

func TestInboxesGetResultsButNoJobs(t *testing.T) {
	inbox := "_INBOX.Xq3.7"
	if err := CheckTarget("delay", inbox); !errors.Is(err, ErrTarget) {
		t.Errorf("CheckTarget(%q): %v, want ErrTarget", inbox, err)
	}
	if err := CheckReplyTo("delay", inbox); err != nil {
		t.Errorf("CheckReplyTo(%q): %v", inbox, err)
	}
	for _, s := range []string{"_INBOX.", "_INBOX.*", "_INBOX.>", "_INBOX.a b", "_INBOX..x", "_INBOX." + strings.Repeat("x", 249)} {
		if err := CheckReplyTo("delay", s); !errors.Is(err, ErrTarget) {
			t.Errorf("CheckReplyTo(%q): %v, want ErrTarget", s, err)
		}
	}
}

func TestCheckReply(t *testing.T) {
	for _, s := range []string{
		"_INBOX.x.y", "_INBOX", "_R_.x.y", "_GR_.abc.def._INBOX.x", "orders", "delayed.x", "x.$JS", strings.Repeat("x", 300),
	} {
		if !CheckReply("delay", s) {
			t.Errorf("CheckReply(%q) = false", s)
		}
	}
	for _, s := range []string{
		"", ".", "x.", ".x", "x..y", "$", "$JS.ACK.x", "$SYS.x", "delay", "delay.to.x", "delay.in.0s.delay.x",
		"*", ">", "x.*", "x.>", "x y", "x\r\nPUB y", "x\x00", "x\x7f",
	} {
		if CheckReply("delay", s) {
			t.Errorf("CheckReply(%q) = true", s)
		}
	}
}

func TestFirstToken(t *testing.T) {
	for s, want := range map[string]string{"orders": "orders", "orders.new.eu": "orders", "": "", ".x": ""} {
		if got := FirstToken(s); got != want {
			t.Errorf("FirstToken(%q) = %q, want %q", s, got, want)
		}
	}
}

var refusedTarget = regexp.MustCompile(`^$|^(delay|_INBOX|_R_|_GR_|\$[^.]*)(\.|$)|(^|\.)([*>]?)(\.|$)|[\x00-\x20\x7f]`)

func FuzzCheckTarget(f *testing.F) {
	for _, s := range goodTargets {
		f.Add(s)
	}
	for _, tt := range badTargets {
		f.Add(tt.target)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := len(s) <= 255 && !refusedTarget.MatchString(s)
		if err := CheckTarget("delay", s); (err == nil) != want || err != nil && !errors.Is(err, ErrTarget) {
			t.Fatalf("CheckTarget(%q): %v, want good %v", s, err, want)
		}
		// What may get jobs may get results and answers too.
		if err := CheckReplyTo("delay", s); want && err != nil {
			t.Fatalf("CheckReplyTo(%q): %v", s, err)
		}
		if want && !CheckReply("delay", s) {
			t.Fatalf("CheckReply(%q) = false", s)
		}
	})
}

func TestCheckTargetAllocations(t *testing.T) {
	mustNotAllocate(t, func() {
		if CheckTarget("delay", "orders.new.eu") != nil || CheckReplyTo("delay", "_INBOX.x.y") != nil ||
			!CheckReply("delay", "_INBOX.x.y") || CheckReply("delay", "delay.x") {
			t.Fatal("wrong answer")
		}
	})
}

func BenchmarkCheckTarget(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := CheckTarget("delay", "orders.new.eu.customer-4711"); err != nil {
			b.Fatal(err)
		}
	}
}
