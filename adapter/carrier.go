package adapter

import (
	"strings"

	"github.com/delaybridge/delaybridge/internal/natstrace"
	"github.com/delaybridge/delaybridge/job"
)

// fields carries trace context in the headers of a job: it reads any spelling, and
// writes the name as it is given in place of any. What is the producer's it does
// not write.
type fields []job.Field

// Get returns the value of key, "" without one.
func (c *fields) Get(key string) string {
	for i := range *c {
		if f := &(*c)[i]; len(f.Name) == len(key) && strings.EqualFold(f.Name, key) {
			return f.Value
		}
	}
	return ""
}

// Set makes value the only one of key.
func (c *fields) Set(key, value string) {
	if producers(key) {
		return
	}
	for i := range *c {
		if f := &(*c)[i]; len(f.Name) == len(key) && strings.EqualFold(f.Name, key) {
			*f = job.Field{Name: key, Value: value}
			c.delFrom(i+1, key)
			return
		}
	}
	*c = append(*c, job.Field{Name: key, Value: value})
}

func (c *fields) del(key string) { c.delFrom(0, key) }

// delFrom removes key from the i-th header on.
func (c *fields) delFrom(i int, key string) {
	keep := (*c)[:min(i, len(*c))]
	for ; i < len(*c); i++ {
		if f := (*c)[i]; len(f.Name) != len(key) || !strings.EqualFold(f.Name, key) {
			keep = append(keep, f)
		}
	}
	*c = keep
}

// Keys returns the names that there are.
func (c *fields) Keys() []string {
	keys := make([]string, len(*c))
	for i, f := range *c {
		keys[i] = strings.ToLower(f.Name)
	}
	return keys
}

// outgoing is a header to which nothing is written that is the producer's.
type outgoing struct{ natstrace.Header }

func (o outgoing) Set(key, value string) {
	if !producers(key) {
		o.Header.Set(key, value)
	}
}

// producers reports whether a header is the producer's also where it belongs to the
// trace.
func producers(key string) bool { return key == headerState || key == headerBaggage }
