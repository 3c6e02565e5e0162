package spans

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The samplers that the variables of OpenTelemetry ask for are known as such that
// need not be asked about children.
func TestFollows(t *testing.T) {
	always := sdktrace.AlwaysSample()
	for _, c := range []struct {
		sampler sdktrace.Sampler
		want    bool
	}{
		{sdktrace.ParentBased(always), true},
		{sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.5)), true},
		{always, false},
		{sdktrace.TraceIDRatioBased(0.5), false},
		{sdktrace.ParentBased(always, sdktrace.WithRemoteParentNotSampled(always)), false},
		{sdktrace.ParentBased(sdktrace.ParentBased(always), sdktrace.WithLocalParentNotSampled(always)), false},
	} {
		if got := follows(c.sampler); got != c.want {
			t.Errorf("%s: %v, want %v", c.sampler.Description(), got, c.want)
		}
	}
}
