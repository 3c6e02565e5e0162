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
	t      *tracer
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

func newSpan(t *tracer, name string, sc, parent trace.SpanContext, kind trace.SpanKind, start time.Time) *span {
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
	s.t.p.add(s.t, s, end)
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
	if !l.SpanContext.IsValid() {
		return
	}
	s.change(func() {
		id, span := l.SpanContext.TraceID(), l.SpanContext.SpanID()
		b := appendBytes(nil, fieldLinkTraceID, id[:])
		b = appendBytes(b, fieldLinkSpanID, span[:])
		b = appendAttributes(b, fieldLinkAttributes, l.Attributes)
		b = appendFixed32(b, fieldLinkFlags, flagsOf(l.SpanContext, l.SpanContext))
		s.body = appendBytes(s.body, fieldLinks, b)
	})
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

// append appends s, which has ended, as an element of a ScopeSpans.
func (s *span) append(dst []byte, end time.Time) []byte {
	var memory [256]byte
	b := memory[:0]
	id, own, parent := s.sc.TraceID(), s.sc.SpanID(), s.parent
	b = appendBytes(b, fieldTraceID, id[:])
	b = appendBytes(b, fieldSpanID, own[:])
	if state := s.sc.TraceState(); state.Len() > 0 {
		b = appendString(b, fieldTraceState, state.String())
	}
	if parent.IsValid() {
		b = appendBytes(b, fieldParent, parent[:])
	}
	b = appendString(b, fieldName, s.name)
	b = appendVarint(b, fieldKind, uint64(s.kind)) // the numbers are the same
	b = appendFixed64(b, fieldStart, nanos(s.start))
	b = appendFixed64(b, fieldEnd, nanos(end))
	b = appendFixed32(b, fieldFlags, s.flags)
	if s.code != codes.Unset {
		b = s.appendStatus(b)
	}
	dst = protowire.AppendTag(dst, fieldSpans, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(b)+len(s.body)))
	return append(append(dst, b...), s.body...)
}

func (s *span) appendStatus(b []byte) []byte {
	code := uint64(1) // ok
	if s.code == codes.Error {
		code = 2
	}
	return appendBytes(b, fieldStatus, appendVarint(appendString(nil, fieldStatusMessage, s.why), fieldStatusCode, code))
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

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), valid(v))
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
	var memory [128]byte
	v := appendValue(memory[:0], a.Value)
	key := valid(string(a.Key))
	size := protowire.SizeTag(fieldKey) + protowire.SizeBytes(len(key)) + protowire.SizeTag(fieldValue) + protowire.SizeBytes(len(v))
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendString(protowire.AppendTag(b, fieldKey, protowire.BytesType), key)
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
