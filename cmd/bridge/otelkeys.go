package main

import "github.com/redis/go-redis/v9"

// tracingConfig is what of tracing the bridge's own configuration says; all else is
// in the variables of OpenTelemetry.
type tracingConfig struct {
	delayed    string
	redis      bool
	instrument func(redis.UniversalClient) error // nil: Redis is not traced
}

// How traceDelayed can be set.
const (
	delayedSame = "same"
	delayedLink = "link"
)

// tracingKeys say how traces go on after a delay; see docs/tracing.md.
var tracingKeys = []*key{
	{name: "tracing.delayed", def: delayedSame, unit: "same or link",
		help: "same: a delivery is part of its producer's trace; link: each begins a trace of its own, with a link to that one, for delays of days",
		set:  oneOf(func(c *config) *string { return &c.tracing.delayed }, delayedSame, delayedLink)},
	{name: "tracing.redis", def: "false", unit: "true or false",
		help: "make spans of the calls of Redis too, each in a trace of its own, for one call serves many jobs",
		set:  yesNo(func(c *config) *bool { return &c.tracing.redis })},
}
