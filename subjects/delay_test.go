package subjects

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

// Delays that are read alike in subjects and headers.
var wholeDelays = []struct {
	text string
	want time.Duration
}{
	{"0s", 0},
	{"0w", 0},
	{"1ns", 1},
	{"250us", 250 * time.Microsecond},
	{"250\u00b5s", 250 * time.Microsecond},
	{"250\u03bcs", 250 * time.Microsecond},
	{"250ms", 250 * time.Millisecond},
	{"90s", 90 * time.Second},
	{"007s", 7 * time.Second},
	{"5m", 5 * time.Minute},
	{"5m5ms", 5*time.Minute + 5*time.Millisecond},
	{"1h30m", 90 * time.Minute},
	{"30m1h", 90 * time.Minute},
	{"1h1h", 2 * time.Hour},
	{"1h0m0s", time.Hour},
	{"7d", 7 * day},
	{"2w", 14 * day},
	{"1w1d1h1m1s1ms1us1ns", 8*day + time.Hour + time.Minute + time.Second + time.Millisecond + time.Microsecond + 1},
	{"3650d", 3650 * day},
	{"15250w", 15250 * 7 * day},
	{"106751d23h47m16s854ms775us807ns", math.MaxInt64},
	{"9223372036854775807ns", math.MaxInt64},
	{"00000000000000000000009223372036854775807ns", math.MaxInt64},
}

func TestParseDelay(t *testing.T) {
	for _, tt := range wholeDelays {
		if got, err := ParseDelay(tt.text); err != nil || got != tt.want {
			t.Errorf("ParseDelay(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if got, err := ParseHeaderDelay(" \t" + tt.text + "\t "); err != nil || got != tt.want {
			t.Errorf("ParseHeaderDelay(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

func TestParseHeaderDelayFractions(t *testing.T) {
	for _, tt := range []struct {
		text string
		want time.Duration
	}{
		{"1.5h", 90 * time.Minute},
		{"0.5d1.5s", 12*time.Hour + 1500*time.Millisecond},
		{"0.25w", 42 * time.Hour},
		{"1.0s", time.Second},
		{"0.000000s", 0},
		{"2h45m0.000000001s", 2*time.Hour + 45*time.Minute + 1},
		{"0.3w", 181440 * time.Second}, // not exact in floating point
		// Finer than a nanosecond: up, never early.
		{"0.1ns", 1},
		{"1.0000000001s", time.Second + 1},
		{"0.00000000000000000000000001s", 1},
		{"0.99999999999999999999999999s", time.Second},
		{"1.00000000000000000000000000s", time.Second},
		{"9223372036.854775807s", math.MaxInt64},
		{"9223372036854775806.5ns", math.MaxInt64},
	} {
		if got, err := ParseHeaderDelay(tt.text); err != nil || got != tt.want {
			t.Errorf("ParseHeaderDelay(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if got, err := ParseDelay(tt.text); !errors.Is(err, ErrSchedule) {
			t.Errorf("ParseDelay(%q) = %v, %v, want ErrSchedule: fractions are for headers", tt.text, got, err)
		}
	}
}

// Delays that are read neither in subjects nor in headers, and a word of why.
var badDelays = []struct{ text, why string }{
	{"", "empty"},
	{"-5s", "negative"},
	{"-0s", "negative"},
	{"-", "negative"},
	{"1h-5m", "unit"},
	{"+5s", "numbers"},
	{"0", "unit"},
	{"5", "unit"},
	{"1h30", "unit"},
	{"5x", "unit"},
	{"5S", "unit"},
	{"5M", "unit"},
	{"5y", "unit"},
	{"5 s", "unit"},
	{"5s ago", "unit"},
	{"1e3s", "unit"},
	{"0x10s", "unit"},
	{"1_000s", "unit"},
	{"\u0665s", "numbers"},
	{"s", "numbers"},
	{"ms5", "numbers"},
	{"soon", "numbers"},
	{"NaN", "numbers"},
	{"infinity", "numbers"},
	{"\x00", "numbers"},
	{"5\xff", "unit"},
	{"9223372036854775808ns", "too long"},
	{"9223372036854775807ns1ns", "too long"},
	{"106752d", "too long"},
	{"15251w", "too long"},
	{"30501w", "too long"}, // just over 2^64 ns
	{"213504d", "too long"},
	{"9223372036854775807w", "too long"},
	{"18446744073709551617ns", "too long"},
	{"99999999999999999999999999999999s", "too long"},
	{"15000w15000w", "too long"},
	{"15000w15000w15000w", "too long"},
}

// Those that only a header could have meant.
var badFractions = []struct{ text, why string }{
	{"", "empty"},
	{"  ", "empty"},
	{".5h", "numbers"},
	{"1.h", "numbers"},
	{".", "numbers"},
	{"1.5", "unit"},
	{"1.5.5h", "unit"},
	{"1,5h", "unit"},
	{"-1.5h", "negative"},
	{"9223372036854775807.1ns", "too long"},
	{"9223372036.854775807000001s", "too long"},
}

func TestParseDelayRefuses(t *testing.T) {
	check := func(name, text, why string, got time.Duration, err error) {
		if got != 0 || !errors.Is(err, ErrSchedule) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s(%q) = %v, %v, want ErrSchedule with %q", name, text, got, err, why)
		}
	}
	for _, tt := range badDelays {
		got, err := ParseDelay(tt.text)
		check("ParseDelay", tt.text, tt.why, got, err)
		got, err = ParseHeaderDelay(tt.text)
		check("ParseHeaderDelay", tt.text, tt.why, got, err)
	}
	for _, tt := range badFractions {
		got, err := ParseHeaderDelay(tt.text)
		check("ParseHeaderDelay", tt.text, tt.why, got, err)
	}
	for _, s := range []string{" 5s", "5s ", "\t5s", "5s\n"} {
		if got, err := ParseDelay(s); !errors.Is(err, ErrSchedule) {
			t.Errorf("ParseDelay(%q) = %v, %v, want ErrSchedule", s, got, err)
		}
	}
}

func TestErrorsQuoteNoMoreThanTheyNeed(t *testing.T) {
	_, err := ParseDelay(strings.Repeat("x", 100_000) + "\r\n")
	if n := len(err.Error()); n > 200 {
		t.Errorf("error of %d bytes: %.300s", n, err)
	}
	_, err = ParseDelay("a\r\nb")
	if !strings.Contains(err.Error(), `"a\r\nb"`) {
		t.Errorf("%v: line break not quoted", err)
	}
	if got, want := quote(strings.Repeat("x", 63)+"\u20ac"), `"`+strings.Repeat("x", 63)+`"...`; got != want {
		t.Errorf("quote cut within a character: %s, want %s", got, want)
	}
	if got := quote(strings.Repeat("\x80", 70)); !strings.HasSuffix(got, `"...`) {
		t.Errorf("quote of no characters at all: %s", got)
	}
}

func FuzzParseDelay(f *testing.F) {
	for _, tt := range wholeDelays {
		f.Add(tt.text)
	}
	for _, tt := range append(badDelays, badFractions...) {
		f.Add(tt.text)
	}
	f.Add("0.0000000000000000001w1.9999999999999999999d")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseHeaderDelay(s)
		want, slack, ok := exactDelay(strings.Trim(s, " \t"))
		diff := new(big.Int).Sub(big.NewInt(int64(got)), want)
		switch {
		case err != nil && !errors.Is(err, ErrSchedule):
			t.Fatalf("ParseHeaderDelay(%q): %v is not ErrSchedule", s, err)
		case err != nil && ok && new(big.Int).Add(want, slack).IsInt64():
			t.Fatalf("ParseHeaderDelay(%q): %v, want %v ns", s, err, want)
		case err == nil && (!ok || diff.Sign() < 0 || diff.Cmp(slack) > 0):
			t.Fatalf("ParseHeaderDelay(%q) = %d ns, want %v", s, got, want)
		}
		whole, wholeErr := ParseDelay(s)
		if wantErr := err != nil || strings.ContainsAny(s, ". \t"); (wholeErr != nil) != wantErr {
			t.Fatalf("ParseDelay(%q): %v, in a header %v", s, wholeErr, err)
		}
		if wholeErr == nil && whole != got {
			t.Fatalf("ParseDelay(%q) = %v, in a header %v", s, whole, got)
		}
	})
}

var (
	delayPart = regexp.MustCompile("([0-9]+(?:\\.[0-9]+)?)(ns|us|\u00b5s|\u03bcs|ms|s|m|h|d|w)")
	delayText = regexp.MustCompile("^(" + delayPart.String() + ")+$")
)

// exactDelay reads a delay with exact fractions, each part rounded up to
// nanoseconds. slack is by how much ParseHeaderDelay may exceed it: one
// nanosecond for every fraction of more than 18 digits.
func exactDelay(s string) (sum, slack *big.Int, ok bool) {
	sum, slack = new(big.Int), new(big.Int)
	if !delayText.MatchString(s) {
		return sum, slack, false
	}
	for _, m := range delayPart.FindAllStringSubmatch(s, -1) {
		x, _ := new(big.Rat).SetString(m[1])
		x.Mul(x, new(big.Rat).SetInt64(int64(unitOf(m[2]))))
		up := new(big.Int).Add(x.Num(), new(big.Int).Sub(x.Denom(), big.NewInt(1)))
		sum.Add(sum, up.Div(up, x.Denom()))
		if _, fraction, _ := strings.Cut(m[1], "."); len(fraction) > 18 {
			slack.Add(slack, big.NewInt(1))
		}
	}
	return sum, slack, true
}

// What Go programs print is what they will put into headers.
func FuzzParseHeaderDelayOfDurationString(f *testing.F) {
	for _, d := range []time.Duration{0, 1, 999, time.Microsecond, 1500 * time.Microsecond, 90 * time.Second, math.MaxInt64} {
		f.Add(int64(d))
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		got, err := ParseHeaderDelay(d.String())
		if n < 0 {
			if !errors.Is(err, ErrSchedule) {
				t.Fatalf("ParseHeaderDelay(%q) = %v, %v, want ErrSchedule", d, got, err)
			}
		} else if err != nil || got != d {
			t.Fatalf("ParseHeaderDelay(%q) = %v, %v", d, got, err)
		}
	})
}

func TestParseDelayAllocations(t *testing.T) {
	mustNotAllocate(t, func() {
		if _, err := ParseDelay("1h30m"); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseHeaderDelay(" 1.5h "); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkParseDelay(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseDelay("1h30m"); err != nil {
			b.Fatal(err)
		}
	}
}
