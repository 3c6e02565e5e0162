package subjects

import (
	"fmt"
	"strings"
	"time"
)

// ParseTime reads the time of an intake subject: Unix seconds, Unix
// milliseconds or 20261130T093000Z. The result is in UTC and may be in the
// past. What cannot be read is ErrSchedule.
func ParseTime(s string) (time.Time, error) {
	if t, ok := parseTime(s); ok {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%w: time %s: want 10 digits (Unix seconds), 13 digits (Unix milliseconds) or one like 20261130T093000Z",
		ErrSchedule, quote(s))
}

// ParseHeaderTime reads a time from a header: the forms of [ParseTime], and
// RFC 3339 with any offset and fraction, a fraction of a nanosecond rounded
// up. Spaces around it are ignored.
func ParseHeaderTime(s string) (time.Time, error) {
	s = trim(s)
	if t, ok := parseTime(s); ok {
		return t, nil
	}
	if t, ok := parseRFC3339(s); ok {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%w: time %s: want RFC 3339 like 2026-11-30T09:30:00Z, 10 digits (Unix seconds), 13 digits (Unix milliseconds) or one like 20261130T093000Z",
		ErrSchedule, quote(s))
}

// ParseNatsSchedule reads the Nats-Schedule header: "@at <RFC 3339>". The
// recurring schedules that the header may also hold are ErrSchedule.
func ParseNatsSchedule(s string) (time.Time, error) {
	s = trim(s)
	if at, ok := strings.CutPrefix(s, "@at "); ok {
		if t, ok := parseRFC3339(trim(at)); ok {
			return t, nil
		}
		return time.Time{}, fmt.Errorf("%w: Nats-Schedule %s: want RFC 3339 after @at, like 2026-11-30T09:30:00Z", ErrSchedule, quote(s))
	}
	if isRecurring(s) {
		return time.Time{}, fmt.Errorf("%w: Nats-Schedule %s: recurring schedules are not supported yet, use @at <RFC 3339>", ErrSchedule, quote(s))
	}
	return time.Time{}, fmt.Errorf("%w: Nats-Schedule %s: want @at <RFC 3339>", ErrSchedule, quote(s))
}

// isRecurring tells "@every 5m", "@daily" and cron lines from garbage, for the
// sake of the error.
func isRecurring(s string) bool {
	fields := len(strings.Fields(s))
	switch {
	case strings.HasPrefix(s, "@at"):
		return false
	case strings.HasPrefix(s, "@"):
		return len(s) > 1
	}
	return fields == 5 || fields == 6
}

func parseTime(s string) (time.Time, bool) {
	switch len(s) {
	case 10:
		n, ok := digits(s)
		return time.Unix(n, 0).UTC(), ok
	case 13:
		n, ok := digits(s)
		return time.UnixMilli(n).UTC(), ok
	case len("20261130T093000Z"):
		if s[8] != 'T' || s[15] != 'Z' {
			return time.Time{}, false
		}
		return civil(s[0:4], s[4:6], s[6:8], s[9:11], s[11:13], s[13:15])
	}
	return time.Time{}, false
}

// parseRFC3339 is stricter than time.Parse, which takes one-digit hours and a
// decimal comma, and it never cuts a fraction off: the result would be early.
func parseRFC3339(s string) (time.Time, bool) {
	const shape = "2026-11-30T09:30:00"
	if len(s) <= len(shape) || s[4] != '-' || s[7] != '-' || s[10]|0x20 != 't' || s[13] != ':' || s[16] != ':' {
		return time.Time{}, false
	}
	t, ok := civil(s[0:4], s[5:7], s[8:10], s[11:13], s[14:16], s[17:19])
	rest := s[len(shape):]
	if rest[0] == '.' {
		fraction := rest[1:]
		var f, scale uint64
		f, scale, rest = leadingFraction(fraction)
		ok = ok && len(rest) < len(fraction)
		t = t.Add(time.Duration(scaleUp(f, uint64(time.Second), scale)))
	}
	offset, good := parseOffset(rest)
	return t.Add(-offset), ok && good
}

// parseOffset reads Z or an offset from UTC like +01:00.
func parseOffset(s string) (time.Duration, bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	if len(s) != len("+01:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, false
	}
	h, ok1 := digits(s[1:3])
	m, ok2 := digits(s[4:6])
	d := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute
	if s[0] == '-' {
		d = -d
	}
	return d, ok1 && ok2 && h < 24 && m < 60
}

// civil returns the time in UTC that the fields name, if there is one.
func civil(fields ...string) (time.Time, bool) {
	var n [6]int
	for i, f := range fields {
		v, ok := digits(f)
		if !ok {
			return time.Time{}, false
		}
		n[i] = int(v)
	}
	month, hour, minute, second := time.Month(n[1]), n[3], n[4], n[5]
	t := time.Date(n[0], month, n[2], hour, minute, second, 0, time.UTC)
	// A day that the month does not have lands in another month.
	return t, t.Month() == month && hour < 24 && minute < 60 && second < 60
}

// digits returns the value of s, at most 18 characters, if all of them are
// digits.
func digits(s string) (int64, bool) {
	var n int64
	for i := 0; i < len(s); i++ {
		if !isDigit(s[i]) {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}
