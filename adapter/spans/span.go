package spans

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields of OTLP's messages.
const (
	fieldSpans = 2 // of ScopeSpans

	fieldTraceID    = 1 // of Span
	fieldSpanID     = 2
	fieldTraceState = 3
	fieldParent     = 4
	fieldName       = 5
	fieldKind       = 6
	fieldStart      = 7
	fieldEnd        = 8
	fieldAttributes = 9
	fieldEvents     = 11
	fieldLinks      = 13
	fieldStatus     = 15
	fieldFlags      = 16

	fieldEventTime       = 1
	fieldEventName       = 2
	fieldEventAttributes = 3

	fieldLinkTraceID    = 1
	fieldLinkSpanID     = 2
	fieldLinkAttributes = 4
	fieldLinkFlags      = 6

	fieldStatusMessage = 2
	fieldStatusCode    = 3

	fieldKey   = 1 // of KeyValue
	fieldValue = 2

	fieldString = 1 // of AnyValue
	fieldBool   = 2
	fieldInt    = 3
	fieldDouble = 4
	fieldArray  = 5

	fieldElements = 1 // of ArrayValue
)

// The bits that OTLP adds to the flags of a context.
const (
	knowsRemote = 1 << 8
	isRemote    = 1 << 9
)

// span is one that is being made. What of it is final is in body already.
type span struct {
	embedded.Span
	t      *Tracer
	sc     trace.SpanContext
	parent trace.SpanID
	flags  uint32
	kind   trace.SpanKind
	start  time.Time

	mu     sync.Mutex
	name   string
	ended  bool
	code   codes.Code
	why    string
	body   []byte // attributes, events and links, as fields of a Span
	memory [240]byte
}

var _ trace.Span = (*span)(nil)

func newSpan(t *Tracer, name string, sc, parent trace.SpanContext, kind trace.SpanKind, start time.Time) *span {
	s := &span{t: t, name: name, sc: sc, parent: parent.SpanID(), flags: flagsOf(sc, parent), kind: trace.ValidateSpanKind(kind), start: start}
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.body = s.memory[:0]
	return s
}

// End ends s, which is exported then; all that is done to it later does nothing.
func (s *span) End(opts ...trace.SpanEndOption) {
	c := trace.NewSpanEndConfig(opts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	end := c.Timestamp()
	if end.IsZero() {
		end = s.start.Add(time.Since(s.start))
	}
	var memory [headSize]byte
	s.t.p.add(s.t, s.head(memory[:0], end), s.body)
}

// change calls f unless s has ended.
func (s *span) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		f()
	}
}

func (s *span) SpanContext() trace.SpanContext       { return s.sc }
func (s *span) TracerProvider() trace.TracerProvider { return s.t.p }
func (s *span) SetName(name string)                  { s.change(func() { s.name = name }) }

func (s *span) IsRecording() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended
}

// SetStatus keeps the best that was said, as the specification has it.
func (s *span) SetStatus(code codes.Code, description string) {
	s.change(func() {
		if s.code == codes.Ok || code == codes.Unset {
			return
		}
		if s.code, s.why = code, ""; code == codes.Error {
			s.why = description
		}
	})
}

func (s *span) SetAttributes(as ...attribute.KeyValue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.body = appendAttributes(s.body, fieldAttributes, as)
	}
}

func (s *span) AddLink(l trace.Link) {
	s.change(func() { s.body = appendLink(s.body, l) })
}

func (s *span) AddEvent(name string, opts ...trace.EventOption) {
	c := trace.NewEventConfig(opts...)
	s.change(func() {
		b := appendFixed64(nil, fieldEventTime, nanos(c.Timestamp()))
		b = appendString(b, fieldEventName, name)
		b = appendAttributes(b, fieldEventAttributes, c.Attributes())
		s.body = appendBytes(s.body, fieldEvents, b)
	})
}

func (s *span) RecordError(err error, opts ...trace.EventOption) {
	if err == nil {
		return
	}
	s.AddEvent("exception", append([]trace.EventOption{trace.WithAttributes(
		attribute.String("exception.type", fmt.Sprintf("%T", err)), attribute.String("exception.message", err.Error()))}, opts...)...)
}

// headSize is enough for what all spans have.
const headSize = 192

// head appends the fields of s, which has ended, that are not in its body.
func (s *span) head(b []byte, end time.Time) []byte {
	b = appendContext(b, s.sc, s.parent, s.flags)
	b = appendString(b, fieldName, s.name)
	b = appendVarint(b, fieldKind, uint64(s.kind)) // the numbers are the same
	b = appendTimes(b, s.start, end)
	return appendStatus(b, s.code, s.why)
}

func appendContext(b []byte, sc trace.SpanContext, parent trace.SpanID, flags uint32) []byte {
	id, own := sc.TraceID(), sc.SpanID()
	b = appendBytes(b, fieldTraceID, id[:])
	b = appendBytes(b, fieldSpanID, own[:])
	if state := sc.TraceState(); state.Len() > 0 {
		b = appendString(b, fieldTraceState, state.String())
	}
	if parent.IsValid() {
		b = appendBytes(b, fieldParent, parent[:])
	}
	return appendFixed32(b, fieldFlags, flags)
}

func appendTimes(b []byte, start, end time.Time) []byte {
	return appendFixed64(appendFixed64(b, fieldStart, nanos(start)), fieldEnd, nanos(end))
}

func appendStatus(b []byte, code codes.Code, why string) []byte {
	if code == codes.Unset {
		return b
	}
	number := uint64(1) // ok
	if code == codes.Error {
		number = 2
	}
	return appendBytes(b, fieldStatus, appendVarint(appendString(nil, fieldStatusMessage, why), fieldStatusCode, number))
}

func appendLink(b []byte, l trace.Link) []byte {
	if !l.SpanContext.IsValid() {
		return b
	}
	id, span := l.SpanContext.TraceID(), l.SpanContext.SpanID()
	in := appendBytes(nil, fieldLinkTraceID, id[:])
	in = appendBytes(in, fieldLinkSpanID, span[:])
	in = appendAttributes(in, fieldLinkAttributes, l.Attributes)
	in = appendFixed32(in, fieldLinkFlags, flagsOf(l.SpanContext, l.SpanContext))
	return appendBytes(b, fieldLinks, in)
}

// flagsOf are the flags of sc, and whether other is of another process.
func flagsOf(sc, other trace.SpanContext) uint32 {
	flags := uint32(sc.TraceFlags()) | knowsRemote
	if other.IsRemote() {
		flags |= isRemote
	}
	return flags
}

func nanos(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) }

// valid returns s as text that OTLP allows.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// appendTagged appends the tag of a field that is n bytes long, and n. The tags of
// almost all fields, and almost all lengths, are one byte.
func appendTagged(b []byte, field protowire.Number, n int) []byte {
	if field < 16 && n < 0x80 {
		return append(b, byte(field)<<3|byte(protowire.BytesType), byte(n))
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(n))
}

func sizeTagged(field protowire.Number, n int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(n)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return append(appendTagged(b, field, len(v)), v...)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	v = valid(v)
	return append(appendTagged(b, field, len(v)), v...)
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFixed32(b []byte, field protowire.Number, v uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), v)
}

func appendFixed64(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), v)
}

func appendAttributes(b []byte, field protowire.Number, as []attribute.KeyValue) []byte {
	for i := range as {
		if as[i].Valid() {
			b = appendAttribute(b, field, &as[i])
		}
	}
	return b
}

// appendAttribute appends a as a KeyValue.
func appendAttribute(b []byte, field protowire.Number, a *attribute.KeyValue) []byte {
	key := valid(string(a.Key))
	if a.Value.Type() == attribute.STRING { // as nearly all are: there is nothing to build first
		v := valid(a.Value.AsString())
		size := sizeTagged(fieldString, len(v))
		b = appendTagged(b, field, sizeTagged(fieldKey, len(key))+sizeTagged(fieldValue, size))
		b = append(appendTagged(b, fieldKey, len(key)), key...)
		b = appendTagged(b, fieldValue, size)
		return append(appendTagged(b, fieldString, len(v)), v...)
	}
	var memory [64]byte
	v := appendValue(memory[:0], a.Value)
	b = appendTagged(b, field, sizeTagged(fieldKey, len(key))+sizeTagged(fieldValue, len(v)))
	b = append(appendTagged(b, fieldKey, len(key)), key...)
	return appendBytes(b, fieldValue, v)
}

// appendValue appends v as the fields of an AnyValue.
func appendValue(b []byte, v attribute.Value) []byte {
	switch v.Type() {
	case attribute.STRING:
		return appendString(b, fieldString, v.AsString())
	case attribute.BOOL:
		return appendVarint(b, fieldBool, protowire.EncodeBool(v.AsBool()))
	case attribute.INT64:
		return appendVarint(b, fieldInt, uint64(v.AsInt64()))
	case attribute.FLOAT64:
		return appendFixed64(b, fieldDouble, math.Float64bits(v.AsFloat64()))
	case attribute.STRINGSLICE:
		var all []byte
		for _, s := range v.AsStringSlice() {
			all = appendBytes(all, fieldElements, appendString(nil, fieldString, s))
		}
		return appendBytes(b, fieldArray, all)
	}
	return appendString(b, fieldString, v.String())
}
