package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/job"
)

// TestNothingIsSentOtherwise: what NATS would change, or what would replace what was
// asked for, is refused. None is stored: a job under another id, or at another time,
// would be worse.
func TestNothingIsSentOtherwise(t *testing.T) {
	c, _ := managed(t)
	for _, tt := range []struct {
		job  client.Job
		want *client.Error
	}{
		{client.Job{ID: "a\nb"}, client.ErrHeader}, // it would be a b
		{client.Job{ID: "a\rb"}, client.ErrHeader},
		{client.Job{ID: " a"}, client.ErrHeader}, // it would be a
		{client.Job{ID: "a\t"}, client.ErrHeader},
		{client.Job{Header: nats.Header{"Nats-Msg-Id": {"a "}}}, client.ErrHeader},
		{client.Job{Header: nats.Header{"Colour": {"red\nblue"}}}, client.ErrHeader},
		{client.Job{Header: nats.Header{"Colour ": {"red"}}}, client.ErrHeader},
		{client.Job{Header: nats.Header{"Delay-Expires: 1h\r\nX": {"y"}}}, client.ErrHeader},
		{client.Job{Header: nats.Header{"": {"y"}}}, client.ErrHeader},
		{client.Job{Header: nats.Header{"Delay-In": {"2h"}}}, client.ErrSchedule}, // it would be at once
		{client.Job{Header: nats.Header{"delay-at": {"2035-01-01T00:00:00Z"}}}, client.ErrSchedule},
		{client.Job{Header: nats.Header{"Nats-Schedule": {"@at 2035-01-01T00:00:00Z"}}}, client.ErrSchedule},
	} {
		tt.job.Target = "orders.x"
		if _, err := c.Schedule(context.Background(), tt.job, 0); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.job, err, tt.want)
		}
		if _, err := c.ScheduleMany(context.Background(), []client.Item{{Job: tt.job}}); !errors.Is(err, tt.want) {
			t.Errorf("many, %+v: %v, want %v", tt.job, err, tt.want)
		}
	}
	for _, state := range []job.State{job.Pending, job.Running} {
		for j, err := range c.List(context.Background(), client.Filter{State: state}) {
			t.Errorf("stored %+v, %v", j, err)
		}
	}
}

// TestReceiptHasTheID: byte for byte, though JSON cannot say one that is no UTF-8.
func TestReceiptHasTheID(t *testing.T) {
	c, _ := managed(t)
	const one, two = "\xff\x01", "a\xfe"
	r, err := c.Schedule(context.Background(), client.Job{ID: one, Target: "x"}, time.Hour)
	if err != nil || r.ID != one {
		t.Errorf("%q, %v", r.ID, err)
	}
	many, err := c.ScheduleMany(context.Background(), []client.Item{{Job: client.Job{Target: "x", Header: nats.Header{"Nats-Msg-Id": {two}}}, In: time.Hour}})
	if err != nil || many[0].Receipt.ID != two {
		t.Errorf("many: %+v, %v", many, err)
	}
}

// TestTimesOfOddZones: RFC 3339 cannot say an offset with seconds, as old times have.
func TestTimesOfOddZones(t *testing.T) {
	c, _ := managed(t)
	due := time.Now().Add(time.Hour).Truncate(time.Microsecond).In(time.FixedZone("LMT", 53*60+28))
	r, err := c.ScheduleAt(context.Background(), client.Job{ID: "a", Target: "x"}, due)
	if err != nil || !r.Due.Equal(due) {
		t.Errorf("%+v, %v; want due %v", r, err, due)
	}
	if a, err := c.RescheduleAt(context.Background(), "a", due.Add(time.Hour)); err != nil || !a.Due.Equal(due.Add(time.Hour)) {
		t.Errorf("%+v, %v", a, err)
	}
}
