package spans

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"sync"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Console returns a client that writes every span to w as one line of JSON, for
// people.
func Console(w io.Writer) Client { return &console{out: json.NewEncoder(w)} }

type console struct {
	mu  sync.Mutex
	out *json.Encoder
}

// line is a span as people read it.
type line struct {
	Name       string         `json:"name"`
	Kind       string         `json:"kind"`
	Trace      string         `json:"trace_id"`
	Span       string         `json:"span_id"`
	Parent     string         `json:"parent_id,omitempty"`
	Links      []string       `json:"links,omitempty"`
	Start      time.Time      `json:"start"`
	DurationUS int64          `json:"duration_us"`
	Error      string         `json:"error,omitempty"`
	Attributes map[string]any `json:"attributes,omitempty"`
}

// Decode returns what a collector reads of r, which a [Client] gets with its spans in
// their wire form.
func Decode(r *tracepb.ResourceSpans) (*tracepb.ResourceSpans, error) {
	b, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	read := new(tracepb.ResourceSpans)
	return read, proto.Unmarshal(b, read)
}

func (c *console) Start(context.Context) error { return nil }
func (c *console) Stop(context.Context) error  { return nil }

func (c *console) UploadTraces(_ context.Context, batch []*tracepb.ResourceSpans) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range batch {
		read, err := Decode(r)
		if err != nil {
			return err
		}
		for _, scope := range read.ScopeSpans {
			for _, s := range scope.Spans {
				if err := c.out.Encode(lineOf(s)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var kinds = map[tracepb.Span_SpanKind]string{
	tracepb.Span_SPAN_KIND_INTERNAL: "internal", tracepb.Span_SPAN_KIND_SERVER: "server", tracepb.Span_SPAN_KIND_CLIENT: "client",
	tracepb.Span_SPAN_KIND_PRODUCER: "producer", tracepb.Span_SPAN_KIND_CONSUMER: "consumer",
}

func lineOf(s *tracepb.Span) line {
	l := line{
		Name: s.Name, Kind: kinds[s.Kind], Trace: hex.EncodeToString(s.TraceId), Span: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		Start: time.Unix(0, int64(s.StartTimeUnixNano)).UTC(), DurationUS: int64(s.EndTimeUnixNano-s.StartTimeUnixNano) / 1000,
		Error: s.GetStatus().GetMessage(), Attributes: map[string]any{},
	}
	for _, o := range s.Links {
		l.Links = append(l.Links, hex.EncodeToString(o.TraceId)+"-"+hex.EncodeToString(o.SpanId))
	}
	for _, a := range s.Attributes {
		l.Attributes[a.Key] = plain(a.Value)
	}
	return l
}

func plain(v *commonpb.AnyValue) any {
	switch v := v.GetValue().(type) { // arrays are left as they are
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return v.DoubleValue
	}
	return v.String()
}
