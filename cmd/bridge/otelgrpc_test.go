package main

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// grpcCollector is a collector that is spoken to over gRPC.
type grpcCollector struct {
	collectorpb.UnimplementedTraceServiceServer
	got  *collectorpb.ExportTraceServiceRequest
	keys []string
}

func (c *grpcCollector) Export(ctx context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.got, c.keys = r, md["api-key"]
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// Over gRPC goes what goes over HTTP, by the time that the bridge has stopped.
func TestExportOverGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var c grpcCollector
	srv := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(srv, &c)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() { srv.Stop(); <-served }()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a")
	o, err := readOTel(os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	var cfg config
	cfg.bridge.ID, cfg.bridge.Service = "b1", "orders"
	var out strings.Builder
	stop, err := startTracing(t.Context(), &cfg, o, &out, newLogger(&out, nil, "text"))
	if err != nil {
		t.Fatal(err)
	}
	_, span := cfg.bridge.Tracer.Tracer("x").Start(t.Context(), "span")
	span.End()
	stop()
	if c.got == nil || len(c.keys) != 1 || c.keys[0] != "secret" {
		t.Fatalf("exported %v with %q; log %s", c.got, c.keys, out.String())
	}
	r := c.got.ResourceSpans[0]
	about := r.Resource.String()
	for _, want := range []string{"orders", "b1", "team", "opentelemetry"} {
		if !strings.Contains(about, want) {
			t.Errorf("the resource does not say %q: %s", want, about)
		}
	}
	if s := r.ScopeSpans[0].Spans; len(s) != 1 || s[0].Name != "span" || out.Len() > 0 {
		t.Errorf("exported %v; log %s", s, out.String())
	}
}
