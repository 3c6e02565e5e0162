package subjects

import (
	"errors"
	"strings"
	"testing"
	"time"
)

var due = time.Date(2026, time.November, 30, 9, 30, 0, 0, time.UTC)

func at(year int, month time.Month, day, hour, minute, sec, ns int) time.Time {
	return time.Date(year, month, day, hour, minute, sec, ns, time.UTC)
}

// Times that are read alike in subjects and headers.
var plainTimes = []struct {
	text string
	want time.Time
}{
	{"1796031000", due},
	{"0000000000", time.Unix(0, 0)},
	{"0000000001", time.Unix(1, 0)},
	{"9999999999", time.Unix(9999999999, 0)},
	{"1796031000123", due.Add(123 * time.Millisecond)},
	{"0000000000001", time.UnixMilli(1)},
	{"20261130T093000Z", due},
	{"20240229T235959Z", at(2024, 2, 29, 23, 59, 59, 0)},
	{"19691231T235959Z", time.Unix(-1, 0)},
	{"00000101T000000Z", at(0, 1, 1, 0, 0, 0, 0)},
	{"99991231T235959Z", at(9999, 12, 31, 23, 59, 59, 0)},
}

func TestParseTime(t *testing.T) {
	for _, tt := range plainTimes {
		if got, err := ParseTime(tt.text); err != nil || !got.Equal(tt.want) || got.Location() != time.UTC {
			t.Errorf("ParseTime(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if got, err := ParseHeaderTime("\t " + tt.text + " \t"); err != nil || !got.Equal(tt.want) || got.Location() != time.UTC {
			t.Errorf("ParseHeaderTime(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

var rfc3339Times = []struct {
	text string
	want time.Time
}{
	{"2026-11-30T09:30:00Z", due},
	{"2026-11-30t09:30:00z", due},
	{"2026-11-30T09:30:00+00:00", due},
	{"2026-11-30T09:30:00-00:00", due},
	{"2026-11-30T10:30:00+01:00", due},
	{"2026-11-30T04:00:00-05:30", due},
	{"2026-12-01T09:29:00+23:59", due},
	{"2026-11-29T09:31:00-23:59", due},
	{"2026-11-30T09:30:00.5Z", due.Add(500 * time.Millisecond)},
	{"2026-11-30T10:30:00.123456789+01:00", due.Add(123456789)},
	{"2026-11-30T09:30:00.000000Z", due},
	{"2024-02-29T00:00:00Z", at(2024, 2, 29, 0, 0, 0, 0)},
	{"0000-01-01T00:00:00Z", at(0, 1, 1, 0, 0, 0, 0)},
	{"9999-12-31T23:59:59-23:59", at(10000, 1, 1, 23, 58, 59, 0)},
	// Finer than a nanosecond: up, never early.
	{"2026-11-30T09:30:00.0000000001Z", due.Add(1)},
	{"2026-11-30T09:30:00.1000000000Z", due.Add(100 * time.Millisecond)},
	{"2026-11-30T09:30:00.9999999999Z", due.Add(time.Second)},
	{"2026-11-30T09:30:00.9999999999999999999999Z", due.Add(time.Second)},
}

func TestParseHeaderTimeRFC3339(t *testing.T) {
	for _, tt := range rfc3339Times {
		if got, err := ParseHeaderTime(" " + tt.text + " "); err != nil || !got.Equal(tt.want) || got.Location() != time.UTC {
			t.Errorf("ParseHeaderTime(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if got, err := ParseNatsSchedule("@at " + tt.text); err != nil || !got.Equal(tt.want) {
			t.Errorf("ParseNatsSchedule(@at %s) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if got, err := ParseTime(tt.text); !errors.Is(err, ErrSchedule) {
			t.Errorf("ParseTime(%q) = %v, %v, want ErrSchedule: RFC 3339 is for headers", tt.text, got, err)
		}
	}
}

// Times that are read nowhere.
var badTimes = []string{
	"", " ", "0", "-1", "now", "tomorrow",
	"179603100", "17960310000", "179603100000", "17960310001234", // 9, 11, 12, 14 digits
	"-179603100", "+179603100", "17960310.5", "1796031000.5", "179603100x", "179603100012x", "0x6b0d6e18", "1_796_0310",
	"\u0661\u0667\u0669\u0666\u0660", // 10 bytes, digits elsewhere
	"20261130T093000", "20261130093000Z", "20261130t093000Z", "20261130T093000z", "20261130T0930Z", "20261130",
	"20261330T093000Z", "20260030T093000Z", "20261131T093000Z", "20261100T093000Z", "20260229T093000Z",
	"20261130T240000Z", "20261115T240000Z", "20261130T096000Z", "20261130T093060Z", "2026113\u00e9T09300Z", "2026-130T093000Z",
	"2026-11-30", "2026-11-30T09:30:00", "2026-11-30T09:30Z", "2026-11-30 09:30:00Z", "2026-11-30T9:30:00Z",
	"2026-11-30T09:30:00,5Z", "2026-11-30T09:30:00.Z", "2026-11-30T09:30:00.5", "2026-11-30T09:30:00Zx",
	"2026-11-30T09:30:00+01", "2026-11-30T09:30:00+0100", "2026-11-30T09:30:00+1:00", "2026-11-30T09:30:00*01:00",
	"2026-11-30T09:30:00+24:00", "2026-11-30T09:30:00+01:60", "2026-11-30T09:30:00+-1:00", "2026-11-30T09:30:00+01:0x",
	"2026-11-31T09:30:00Z", "2026-02-29T09:30:00Z", "2026-13-01T09:30:00Z", "2026-00-01T09:30:00Z", "2026-11-00T09:30:00Z",
	"2026-11-30T24:00:00Z", "2026-11-15T24:00:00Z", "2026-11-30T09:60:00Z", "2026-11-30T09:30:60Z", "12026-11-30T09:30:00Z", "-026-11-30T09:30:00Z",
	"2026/11/30T09:30:00Z", "2026-11/30T09:30:00Z", "2026-11-30T09.30:00Z", "2026-11-30T09:30.00Z",
	"Mon, 30 Nov 2026 09:30:00 GMT", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
}

func TestParseTimeRefuses(t *testing.T) {
	for _, s := range badTimes {
		if got, err := ParseTime(s); !errors.Is(err, ErrSchedule) || !got.IsZero() {
			t.Errorf("ParseTime(%q) = %v, %v, want ErrSchedule", s, got, err)
		}
		if got, err := ParseHeaderTime(s); !errors.Is(err, ErrSchedule) || !got.IsZero() {
			t.Errorf("ParseHeaderTime(%q) = %v, %v, want ErrSchedule", s, got, err)
		}
		if got, err := ParseNatsSchedule("@at " + s); !errors.Is(err, ErrSchedule) || !got.IsZero() {
			t.Errorf("ParseNatsSchedule(@at %s) = %v, %v, want ErrSchedule", s, got, err)
		}
	}
	for _, s := range []string{" 1796031000", "1796031000 "} {
		if got, err := ParseTime(s); !errors.Is(err, ErrSchedule) {
			t.Errorf("ParseTime(%q) = %v, %v, want ErrSchedule", s, got, err)
		}
	}
}

func TestParseNatsSchedule(t *testing.T) {
	for _, s := range []string{"@at 2026-11-30T09:30:00Z", "  @at \t2026-11-30T10:30:00+01:00 "} {
		if got, err := ParseNatsSchedule(s); err != nil || !got.Equal(due) {
			t.Errorf("ParseNatsSchedule(%q) = %v, %v, want %v", s, got, err, due)
		}
	}
	for _, s := range []string{
		"", "@", "@at", "@at ", "@AT 2026-11-30T09:30:00Z", "@at2026-11-30T09:30:00Z", "2026-11-30T09:30:00Z",
		"@at 1796031000", "@at 20261130T093000Z", "@at @every 5m", "tomorrow at noon",
		"@every 5m", "@hourly", "@daily", "@midnight", "0 5 * * * *", "*/5 * * * *",
	} {
		if got, err := ParseNatsSchedule(s); !errors.Is(err, ErrSchedule) || !got.IsZero() {
			t.Errorf("ParseNatsSchedule(%q) = %v, %v, want ErrSchedule", s, got, err)
		}
	}
}

func TestParseNatsScheduleSaysThatRecurringOnesAreMissing(t *testing.T) {
	for s, recurring := range map[string]bool{
		"@every 5m": true, "@hourly": true, "0 5 * * * *": true, "*/5 * * * *": true,
		"": false, "@": false, "@at": false, "@at 1796031000": false, "tomorrow": false,
	} {
		_, err := ParseNatsSchedule(s)
		if got := strings.Contains(err.Error(), "not supported yet"); got != recurring {
			t.Errorf("ParseNatsSchedule(%q): %v", s, err)
		}
	}
}

func FuzzParseTime(f *testing.F) {
	for _, tt := range append(plainTimes, rfc3339Times...) {
		f.Add(tt.text)
	}
	for _, s := range badTimes {
		f.Add(s)
	}
	layouts := []string{"20060102T150405Z", time.RFC3339}
	f.Fuzz(func(t *testing.T, s string) {
		plain, plainErr := ParseTime(s)
		got, err := ParseHeaderTime(s)
		for _, e := range []error{plainErr, err} {
			if e != nil && !errors.Is(e, ErrSchedule) {
				t.Fatalf("%q: %v is not ErrSchedule", s, e)
			}
		}
		if plainErr == nil && (err != nil || !got.Equal(plain)) {
			t.Fatalf("%q: %v in a subject, %v, %v in a header", s, plain, got, err)
		}
		s = strings.Trim(s, " \t")
		if err != nil || strings.Trim(s, "0123456789") == "" {
			return
		}
		// The standard library reads it too and cuts off what we round up.
		for _, layout := range layouts {
			if want, e := time.Parse(layout, strings.ToUpper(s)); e == nil {
				if d := got.Sub(want); d < 0 || d > 1 {
					t.Fatalf("%q: %v, want %v", s, got, want)
				}
				return
			}
		}
		t.Fatalf("%q: %v, but it is no time", s, got)
	})
}

func FuzzParseHeaderTimeOfFormat(f *testing.F) {
	f.Add(int64(1796031000), int64(0), 0)
	f.Add(int64(-1), int64(999999999), 60)
	f.Add(int64(253402300799), int64(1), -330)
	f.Fuzz(func(t *testing.T, sec, ns int64, minutes int) {
		zone := time.FixedZone("", minutes%1440*60)
		want := time.Unix(sec, ns).In(zone)
		text := want.Format(time.RFC3339Nano)
		if want.Year() < 0 || want.Year() > 9999 {
			return
		}
		if got, err := ParseHeaderTime(text); err != nil || !got.Equal(want) {
			t.Fatalf("ParseHeaderTime(%q) = %v, %v", text, got, err)
		}
	})
}

func TestParseTimeAllocations(t *testing.T) {
	mustNotAllocate(t, func() {
		for _, s := range [...]string{"1796031000", "1796031000123", "20261130T093000Z", "2026-11-30T10:30:00.5+01:00"} {
			if _, err := ParseHeaderTime(s); err != nil {
				t.Fatal(err)
			}
		}
	})
}
