package subjects

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
)

// The wire format: a change here breaks deliveries that are under way and
// needs a new version.
var goldenTokens = []struct {
	token Token
	hex   string
	text  string
}{
	{
		Token{Store: StoreRedis, Shard: 5, Generated: true, Incarnation: 0x0123456789abcdef, Attempt: 1, Nonce: 0xfedcba9876543210, ID: "0123456789ab"},
		"11" + "72" + "0005" + "0123456789abcdef" + "fedcba9876543210" + "01" + "303132333435363738396162",
		"EXIABQEjRWeJq83v_ty6mHZUMhABMDEyMzQ1Njc4OWFi",
	},
	{
		Token{Store: StoreLocal, Shard: math.MaxUint16, Incarnation: 1, Attempt: 300, Nonce: 2, ID: "order 4711\x00\xff"},
		"10" + "6c" + "ffff" + "0000000000000001" + "0000000000000002" + "ac02" + "6f72646572203437313100ff",
		"EGz__wAAAAAAAAABAAAAAAAAAAKsAm9yZGVyIDQ3MTEA_w",
	},
	{
		Token{Store: StoreRedis, Incarnation: math.MaxUint64, Attempt: math.MaxUint32, Nonce: math.MaxUint64, ID: "x"},
		"10" + "72" + "0000" + "ffffffffffffffff" + "ffffffffffffffff" + "ffffffff0f" + "78",
		"EHIAAP__________________________D3g",
	},
}

func TestTokenWireFormat(t *testing.T) {
	for _, tt := range goldenTokens {
		text := string(AppendToken([]byte("x."), tt.token))
		if text != "x."+tt.text {
			t.Errorf("AppendToken(%+v) = %q, want %q after x.", tt.token, text, tt.text)
		}
		if b, err := base64.RawURLEncoding.DecodeString(tt.text); err != nil || hex.EncodeToString(b) != tt.hex {
			t.Errorf("%s is %x, %v, want %s", tt.text, b, err, tt.hex)
		}
		if got, err := ParseToken(tt.text); err != nil || got != tt.token {
			t.Errorf("ParseToken(%q) = %+v, %v, want %+v", tt.text, got, err, tt.token)
		}
	}
}

func TestTokenOfLongestID(t *testing.T) {
	want := Token{Store: StoreRedis, Incarnation: 1, Attempt: math.MaxUint32, Nonce: 1, ID: strings.Repeat("\xff", 255)}
	text := string(AppendToken(nil, want))
	if got, err := ParseToken(text); err != nil || got != want {
		t.Errorf("ParseToken(%q) = %+v, %v", text, got, err)
	}
	if flaw := subjectFlaw(text); flaw != "" || strings.Contains(text, ".") || len(text) != 374 {
		t.Errorf("token %q of %d bytes: %s", text, len(text), flaw)
	}
}

func TestParseTokenRefuses(t *testing.T) {
	good := Token{Store: StoreRedis, Incarnation: 1, Attempt: 1, Nonce: 1, ID: "abc"}
	text := string(AppendToken(nil, good))
	if _, err := ParseToken(text); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*Token)) string {
		bad := good
		change(&bad)
		return string(AppendToken(nil, bad))
	}
	raw := func(h string) string {
		b, err := hex.DecodeString(h)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	const fixed = "0000" + "0000000000000001" + "0000000000000001"
	for name, s := range map[string]string{
		"empty":             "",
		"garbage":           "hello",
		"not base64url":     text[:20] + "+" + text[21:],
		"standard base64":   text[:20] + "/" + text[21:],
		"padded":            text + "=",
		"dot":               text + ".",
		"space":             " " + text,
		"line break inside": text[:20] + "\n" + text[20:],
		"line break after":  text + "\r",
		"cut by one":        text[:len(text)-1],
		"cut before the id": text[:28],
		"unused bits":       goldenTokens[2].text[:34] + "h",
		"cut after version": raw("10"),
		"cut within nonce":  raw("10" + "72" + fixed)[:25],
		"version 0":         raw("00" + "72" + fixed + "01" + "78"),
		"version 2":         raw("20" + "72" + fixed + "01" + "78"),
		"unknown flag":      raw("12" + "72" + fixed + "01" + "78"),
		"attempt too large": raw("10" + "72" + fixed + "8080808010" + "78"),
		"attempt overflow":  raw("10" + "72" + fixed + "ffffffffffffffffff7f" + "78"),
		"attempt padded":    raw("10" + "72" + fixed + "8100" + "78"),
		"attempt cut short": raw("10" + "72" + fixed + "81"),
		"attempt missing":   raw("10" + "72" + fixed),
		"attempt zero":      with(func(k *Token) { k.Attempt = 0 }),
		"nonce zero":        with(func(k *Token) { k.Nonce = 0 }),
		"no store":          with(func(k *Token) { k.Store = 0 }),
		"unknown store":     with(func(k *Token) { k.Store = 'x' }),
		"no id":             with(func(k *Token) { k.ID = "" }),
		"id of 256":         with(func(k *Token) { k.ID = strings.Repeat("x", 256) }),
		"id of 10000":       with(func(k *Token) { k.ID = strings.Repeat("x", 10000) }),
	} {
		if got, err := ParseToken(s); !errors.Is(err, ErrToken) || got != (Token{}) {
			t.Errorf("%s: ParseToken(%q) = %+v, %v, want ErrToken", name, s, got, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	for _, tt := range goldenTokens {
		k := tt.token
		f.Add(k.Store == StoreLocal, k.Shard, k.Generated, k.Incarnation, k.Attempt, k.Nonce, k.ID)
	}
	f.Add(false, uint16(0), false, uint64(0), uint32(0), uint64(0), "")
	f.Fuzz(func(t *testing.T, local bool, shard uint16, generated bool, incarnation uint64, attempt uint32, nonce uint64, id string) {
		want := Token{StoreRedis, shard, generated, incarnation, attempt, nonce, id}
		if local {
			want.Store = StoreLocal
		}
		text := string(AppendToken(nil, want))
		got, err := ParseToken(text)
		legal := attempt > 0 && nonce > 0 && len(id) > 0 && len(id) <= 255
		if legal && (err != nil || got != want) || !legal && !errors.Is(err, ErrToken) {
			t.Fatalf("%+v: %q, %+v, %v", want, text, got, err)
		}
		if strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Fatalf("%+v: %q is not one subject token", want, text)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	for _, tt := range goldenTokens {
		f.Add(tt.text)
		f.Add(tt.text + "\n")
		f.Add(tt.text[:len(tt.text)-1])
	}
	f.Add("")
	f.Add(strings.Repeat("A", 400))
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseToken(s)
		if err != nil {
			if !errors.Is(err, ErrToken) {
				t.Fatalf("ParseToken(%q): %v is not ErrToken", s, err)
			}
			return
		}
		if again := string(AppendToken(nil, k)); again != s {
			t.Fatalf("%q and %q are the same token", s, again)
		}
	})
}

func TestTokenAllocations(t *testing.T) {
	k := Token{Store: StoreRedis, Shard: 5, Incarnation: 1, Attempt: 1, Nonce: 1, ID: strings.Repeat("x", 255)}
	buf := make([]byte, 0, 512)
	mustNotAllocate(t, func() { buf = AppendToken(buf[:0], k) })
	mustNotAllocate(t, func() { buf = AppendAckSubject(buf[:0], "delay", "b1", k) })

	text := string(AppendToken(nil, k))
	n := testing.AllocsPerRun(1000, func() {
		if _, err := ParseToken(text); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Errorf("ParseToken: %v allocations, want one, the id", n)
	}
}

func BenchmarkAppendToken(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 512)
	for b.Loop() {
		buf = AppendToken(buf[:0], goldenTokens[0].token)
	}
}

func BenchmarkParseToken(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseToken(goldenTokens[0].text); err != nil {
			b.Fatal(err)
		}
	}
}
