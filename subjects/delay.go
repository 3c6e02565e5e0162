package subjects

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// ParseDelay reads the delay of an intake subject: whole numbers, each with
// its unit. A negative delay, one that overflows and one that cannot be read
// is ErrSchedule.
func ParseDelay(s string) (time.Duration, error) { return parseDelay(s, false) }

// ParseHeaderDelay reads a delay from a header: as [ParseDelay], but numbers
// may have fractions and spaces around it are ignored. It reads whatever
// [time.Duration.String] prints of a duration that is not negative.
func ParseHeaderDelay(s string) (time.Duration, error) { return parseDelay(trim(s), true) }

// What can be wrong with a delay.
const (
	flawEmpty    = "empty, want one like 90s or 1h30m"
	flawNegative = "negative"
	flawNumber   = "want numbers with units like 90s or 1h30m"
	flawUnit     = "every number needs a unit of ns us ms s m h d w"
	flawFraction = "fractions are for headers, here use a smaller unit"
	flawOverflow = "too long"
)

func parseDelay(s string, fractions bool) (time.Duration, error) {
	flaw := ""
	switch {
	case s == "":
		flaw = flawEmpty
	case s[0] == '-':
		flaw = flawNegative
	}
	var sum uint64
	for rest := s; rest != "" && flaw == ""; {
		var d uint64
		d, rest, flaw = leadingDelay(rest, fractions)
		// Neither exceeded 2^63 by more than a unit, so this does not wrap.
		if sum += d; flaw == "" && sum > math.MaxInt64 {
			flaw = flawOverflow
		}
	}
	if flaw != "" {
		return 0, fmt.Errorf("%w: delay %s: %s", ErrSchedule, quote(s), flaw)
	}
	return time.Duration(sum), nil
}

// leadingDelay reads one number with its unit off the front of s and returns
// it in nanoseconds, below 2^63 but for its fraction, or what is wrong with it.
func leadingDelay(s string, fractions bool) (d uint64, rest, flaw string) {
	n, rest, ok := leadingNumber(s)
	switch {
	case len(rest) == len(s):
		return 0, "", flawNumber
	case !ok:
		return 0, "", flawOverflow
	}
	f, scale := uint64(0), uint64(1)
	if strings.HasPrefix(rest, ".") {
		if !fractions {
			return 0, "", flawFraction
		}
		digits := rest[1:]
		if f, scale, rest = leadingFraction(digits); len(rest) == len(digits) {
			return 0, "", flawNumber
		}
	}
	unit, rest := leadingUnit(rest)
	switch {
	case unit == 0:
		return 0, "", flawUnit
	case n > math.MaxInt64/unit:
		return 0, "", flawOverflow
	}
	return n*unit + scaleUp(f, unit, scale), rest, ""
}

// leadingNumber reads the digits in front of s; ok is false when they make
// more than an uint64 is sure to hold.
func leadingNumber(s string) (n uint64, rest string, ok bool) {
	i := 0
	ok = true
	for ; i < len(s) && isDigit(s[i]); i++ {
		if n > math.MaxInt64/10 {
			ok = false
			continue
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, s[i:], ok
}

// leadingFraction reads the digits in front of s, which follow a decimal
// point, as f/scale with f <= scale <= 10^18. Digits beyond that round up.
func leadingFraction(s string) (f, scale uint64, rest string) {
	const finest = 1e18
	scale = 1
	inexact := false
	i := 0
	for ; i < len(s) && isDigit(s[i]); i++ {
		if scale == finest {
			inexact = inexact || s[i] != '0'
			continue
		}
		f = f*10 + uint64(s[i]-'0')
		scale *= 10
	}
	if inexact {
		f++
	}
	return f, scale, s[i:]
}

// scaleUp returns f*unit/scale, rounded up. f may not exceed scale.
func scaleUp(f, unit, scale uint64) uint64 {
	hi, lo := bits.Mul64(f, unit)
	q, r := bits.Div64(hi, lo, scale)
	if r > 0 {
		q++
	}
	return q
}

// leadingUnit reads the unit in front of s and returns it in nanoseconds,
// zero when it is none.
func leadingUnit(s string) (unit uint64, rest string) {
	i := 0
	for i < len(s) && s[i] != '.' && !isDigit(s[i]) {
		i++
	}
	return uint64(unitOf(s[:i])), s[i:]
}

func unitOf(s string) time.Duration {
	switch s {
	case "ns":
		return time.Nanosecond
	case "us", "\u00b5s", "\u03bcs": // the micro sign and the Greek mu
		return time.Microsecond
	case "ms":
		return time.Millisecond
	case "s":
		return time.Second
	case "m":
		return time.Minute
	case "h":
		return time.Hour
	case "d":
		return 24 * time.Hour
	case "w":
		return 7 * 24 * time.Hour
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// trim removes the white space that header values may carry around them.
func trim(s string) string { return strings.Trim(s, " \t") }
