package redisdelay

import (
	"context"
	"maps"
	"testing"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

func TestPauses(t *testing.T) {
	ctx := context.Background()
	s := open(t, testredis.Start(t).URL())
	if p, err := s.LoadPauses(ctx); err != nil || len(p) != 0 {
		t.Fatalf("at first: %v, %v", p, err)
	}
	now := int64(1_796_000_000_123_456) // what a double still holds
	for _, p := range []job.Pauses{
		{},
		{"a": {Paused: true, At: job.Time(now)}, "b.>": {Paused: false, At: 7}},
		{"a": {Paused: false, At: job.Time(now - 1)}, "b.>": {Paused: true, At: 7}},
		{"b.>": {Paused: false, At: 7}},
	} {
		if err := s.SavePauses(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	want := job.Pauses{"a": {Paused: true, At: job.Time(now)}, "b.>": {Paused: true, At: 7}}
	if p, err := s.LoadPauses(ctx); err != nil || !maps.Equal(p, want) {
		t.Errorf("kept %v, %v; want %v", p, err, want)
	}
	if err := s.client.HSet(ctx, s.pausesKey(), "c", "rubbish").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.LoadPauses(ctx); err == nil {
		t.Error("rubbish is read as a pause")
	}
}
