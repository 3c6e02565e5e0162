package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
)

func TestTime(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 30, 0, 123456789, time.FixedZone("", 3600))
	for text, when := range map[string]api.Time{`"2026-11-30T09:30:00.123456Z"`: {Time: at}, `"1970-01-01T00:00:00.000001Z"`: api.At(1), "null": api.At(0)} {
		b, err := json.Marshal(when)
		if err != nil || string(b) != text {
			t.Errorf("%v is written as %s, %v, want %s", when, b, err, text)
		}
		var back api.Time
		if err := json.Unmarshal(b, &back); err != nil || !back.Equal(when.Truncate(time.Microsecond)) {
			t.Errorf("%s is read as %v, %v", b, back, err)
		}
	}
}

func FuzzID(f *testing.F) {
	for _, s := range []string{"", "order-18", "\xff", "ä\x00", `{"base64":"AA=="}`, strings.Repeat("x", 255)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(api.ByID{ID: api.ID(s)})
		if err != nil {
			t.Fatal(err)
		}
		var back api.ByID
		if err := json.Unmarshal(b, &back); err != nil || string(back.ID) != s {
			t.Errorf("%q is written as %s and read as %q, %v", s, b, back.ID, err)
		}
	})
}

func TestIDIsReadStrictly(t *testing.T) {
	for _, text := range []string{`{"base64":"!"}`, `{"base64":1}`, `1`, `[]`, `{"id":"x"}`, `{"base64":"AA==","x":1}`} {
		var id api.ID
		if err := json.Unmarshal([]byte(text), &id); err == nil {
			t.Errorf("%s is read as %q", text, id)
		}
	}
}

func TestFailure(t *testing.T) {
	b, err := json.Marshal(api.Failure{Error: job.ErrUnknown.With("no job %q", "x")})
	if err != nil {
		t.Fatal(err)
	}
	var f api.Failure
	if err := json.Unmarshal(b, &f); err != nil || !f.Error.Is(job.ErrUnknown) || f.Error.Description != `no job "x"` {
		t.Errorf("%s is read as %v, %v", b, f.Error, err)
	}
}
