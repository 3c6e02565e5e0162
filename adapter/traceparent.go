package adapter

import (
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
)

// The form of W3C's traceparent, version 00, which is what nearly all are: reading
// and writing it by itself takes a fraction of the time of a propagator.
const (
	parentLen     = 55
	parentTraceAt = 3
	parentSpanAt  = 36
	parentFlagsAt = 53
)

// knownFlags are those of traces that are sampled, and of ids that are random.
const knownFlags = trace.FlagsSampled | trace.FlagsRandom

// parseTraceparent reads s if it is of the ordinary form; all else is left to the
// propagator.
func parseTraceparent(s string) (sc trace.SpanContext, ok bool) {
	if len(s) != parentLen || s[:parentTraceAt] != "00-" || s[parentSpanAt-1] != '-' || s[parentFlagsAt-1] != '-' ||
		s[parentFlagsAt] != '0' || s[parentFlagsAt+1]|3 != '3' {
		return sc, false
	}
	c := trace.SpanContextConfig{TraceFlags: trace.TraceFlags(s[parentFlagsAt+1] - '0'), Remote: true}
	if !unhex(c.TraceID[:], s[parentTraceAt:]) || !unhex(c.SpanID[:], s[parentSpanAt:]) {
		return sc, false
	}
	sc = trace.NewSpanContext(c)
	return sc, sc.IsValid()
}

// unhex reads as many lower-case digits of s as fill dst.
func unhex(dst []byte, s string) bool {
	var all byte
	for i := range dst {
		high, low := hexDigits[s[2*i]], hexDigits[s[2*i+1]]
		dst[i] = high<<4 | low
		all |= high | low
	}
	return all <= 0xf
}

// hexDigits are the values of the lower-case digits; of all else above 0xf.
var hexDigits = func() (t [256]byte) {
	for c := range t {
		t[c] = 0xff
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

// traceparent writes sc, whose flags are those that parseTraceparent reads.
func traceparent(sc trace.SpanContext) string {
	var b [parentLen]byte
	id, span := sc.TraceID(), sc.SpanID()
	copy(b[:], "00-")
	hex.Encode(b[parentTraceAt:], id[:])
	b[parentSpanAt-1] = '-'
	hex.Encode(b[parentSpanAt:], span[:])
	b[parentFlagsAt-1], b[parentFlagsAt] = '-', '0'
	b[parentFlagsAt+1] = '0' + byte(sc.TraceFlags())
	return string(b[:])
}
