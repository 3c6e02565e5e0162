// Package natstrace carries trace context in the headers of NATS messages.
//
// W3C demands that the names of its headers are written in lower case and read
// in any: clients of NATS that canonicalise write Traceparent. NATS itself keeps
// names as they are, so both may even be in one message.
package natstrace

import (
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
)

// Header carries trace context in the headers of a message: it reads any spelling
// of a name, the lower-case one first, and leaves nothing but the name as it is
// given, which propagators spell in lower case, when it writes.
type Header nats.Header

var _ propagation.ValuesGetter = Header(nil)

// Get returns the first value of key, "" without one.
func (h Header) Get(key string) string {
	if v := h.Values(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Values returns the values of key.
func (h Header) Values(key string) []string {
	if v := h[key]; len(v) > 0 {
		return v
	}
	for name, v := range h {
		if len(name) == len(key) && len(v) > 0 && strings.EqualFold(name, key) {
			return v
		}
	}
	return nil
}

// Set makes value the only value of key, however it was spelt.
func (h Header) Set(key, value string) {
	h.Del(key)
	h[key] = []string{value}
}

// Del removes key, however it is spelt.
func (h Header) Del(key string) {
	for name := range h {
		if len(name) == len(key) && strings.EqualFold(name, key) {
			delete(h, name)
		}
	}
}

// Keys returns the names that there are, in lower case.
func (h Header) Keys() []string {
	keys := make([]string, 0, len(h))
	for name := range h {
		keys = append(keys, strings.ToLower(name))
	}
	return keys
}

// Lazy is a Header that is made when there is something to write.
type Lazy struct{ Header nats.Header }

// Get returns the first value of key, "" without one.
func (l *Lazy) Get(key string) string { return Header(l.Header).Get(key) }

// Set makes value the only value of key, however it was spelt.
func (l *Lazy) Set(key, value string) {
	if l.Header == nil {
		l.Header = nats.Header{}
	}
	Header(l.Header).Set(key, value)
}

// Keys returns the names that there are, in lower case.
func (l *Lazy) Keys() []string { return Header(l.Header).Keys() }
