// Package spans is a trace.TracerProvider for programs that make more spans than
// the OpenTelemetry SDK can make cheaply: a job is a few microseconds of work, and
// has three spans. Spans of which all is known when they end are made without an
// object that others might change; see [Tracer.Begin] and [Record].
//
// A span is written in the form in which OTLP transports it as soon as its parts are
// known, and what has ended is a run of bytes in a buffer: there is nothing to
// convert when it is exported, and nothing for the garbage collector to follow.
// Samplers and resources are the SDK's, and the clients that carry the bytes to a
// collector, over HTTP or gRPC, are those of its exporters with all their settings.
//
// What differs from the SDK: attributes of one span must have different names, there
// are no limits to their number, and no processors between spans and exporter.
//
// # Guarantees
//
// To end a span never waits for a collector. What waits to be exported is bounded:
// what exceeds [Options].Queue is dropped and counted. Shutdown exports what waits
// until its context ends; spans that end later are dropped. Text that is not UTF-8,
// which OTLP does not allow and which would cost a whole batch, is mended.
package spans
