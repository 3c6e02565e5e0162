package subjects

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckPrefix(t *testing.T) {
	for _, s := range []string{"delay", "acme.delay", "a.b.c", "Delay-2_x", "_", strings.Repeat("x", 64)} {
		if err := CheckPrefix(s); err != nil {
			t.Errorf("CheckPrefix(%q): %v", s, err)
		}
	}
	for _, s := range []string{
		"", ".", "delay.", ".delay", "a..b", "*", "delay.>", "a b", "a\n", "\u00fc", "{x}", "$SYS", "$SYS.delay", "$",
		"_INBOX", "_INBOX.delay", "_R_", "_GR_.x", strings.Repeat("x", 65),
	} {
		if err := CheckPrefix(s); !errors.Is(err, ErrName) {
			t.Errorf("CheckPrefix(%q): %v, want ErrName", s, err)
		}
	}
}

func TestCheckBridgeID(t *testing.T) {
	for _, s := range []string{"a", "b1", "web-1_example_com", "A", "-", strings.Repeat("x", 64)} {
		if err := CheckBridgeID(s); err != nil {
			t.Errorf("CheckBridgeID(%q): %v", s, err)
		}
	}
	for _, s := range []string{"", ".", "a.b", "a b", "*", ">", "a/b", "\u00fc", "a\x00", strings.Repeat("x", 65)} {
		if err := CheckBridgeID(s); !errors.Is(err, ErrName) {
			t.Errorf("CheckBridgeID(%q): %v, want ErrName", s, err)
		}
	}
}

func TestBridgeID(t *testing.T) {
	for host, want := range map[string]string{
		"web-1":                       "web-1",
		"web-1.eu.example.com":        "web-1_eu_example_com",
		"under_score":                 "under_score",
		"fe80::1%eth0":                "fe80__1_eth0",
		"b\u00fcro.local":             "b_ro_local",
		"a\xffb":                      "a_b",
		" *>":                         "___",
		"":                            "",
		strings.Repeat("web.", 16):    strings.Repeat("web_", 16),
		strings.Repeat("web.", 40):    strings.Repeat("web_", 16),
		strings.Repeat("\u00fc", 100): strings.Repeat("_", 64),
	} {
		if got := BridgeID(host); got != want {
			t.Errorf("BridgeID(%q) = %q, want %q", host, got, want)
		}
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "web-1.example.com", "acme.delay", "a..b", "\xff\u00fc", "$SYS", strings.Repeat("x.", 40)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id := BridgeID(s)
		if err := CheckBridgeID(id); s != "" && err != nil {
			t.Fatalf("BridgeID(%q) = %q: %v", s, id, err)
		}
		if CheckBridgeID(s) == nil && id != s {
			t.Fatalf("BridgeID(%q) = %q: it was an id already", s, id)
		}
		// Nobody may schedule a job into the bridge, whatever its prefix, and
		// its own subjects must be such as NATS can carry.
		if CheckPrefix(s) == nil && (CheckTarget(s, s) == nil || CheckTarget(s, s+".x") == nil || CheckTarget("other-"+s, s) != nil) {
			t.Fatalf("prefix %q", s)
		}
	})
}
