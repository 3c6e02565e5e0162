package adapter_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

const dueLayout = "2006-01-02T15:04:05.000000Z"

// TestTimeForms schedules one job with each way to give a time. All of them
// must be delivered once, at the time that was answered.
func TestTimeForms(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	second := start.Add(time.Second).Truncate(time.Second)
	milli := start.Add(300 * time.Millisecond).Truncate(time.Millisecond)
	micro := start.Add(300 * time.Millisecond).Truncate(time.Microsecond)
	india := micro.In(time.FixedZone("", 5*3600+1800))
	forms := []struct {
		subject string
		header  []string
		at      time.Time     // the exact due time
		in      time.Duration // or the delay
	}{
		{subject: "delay.in.0s.", in: 0},
		{subject: "delay.in.250ms.", in: 250 * time.Millisecond},
		{subject: "delay.in.100ms150000us1000ns.", in: 250*time.Millisecond + time.Microsecond},
		{subject: "delay.at." + strconv.FormatInt(second.Unix(), 10) + ".", at: second},
		{subject: "delay.at." + strconv.FormatInt(milli.UnixMilli(), 10) + ".", at: milli},
		{subject: "delay.at." + second.UTC().Format("20060102T150405Z") + ".", at: second},
		{subject: "delay.to.", header: []string{"Delay-In", "0.25s"}, in: 250 * time.Millisecond},
		{subject: "delay.to.", header: []string{"Delay-In", " 0.0005m100ms "}, in: 130 * time.Millisecond},
		{subject: "delay.to.", header: []string{"delay-IN", "200ms"}, in: 200 * time.Millisecond},
		{subject: "delay.to.", header: []string{"Delay-At", micro.UTC().Format(time.RFC3339Nano)}, at: micro},
		{subject: "delay.to.", header: []string{"Delay-At", india.Format(time.RFC3339Nano)}, at: micro},
		{subject: "delay.to.", header: []string{"Delay-At", micro.UTC().Format(dueLayout[:26]) + "001Z"}, at: micro.Add(time.Microsecond)},
		{subject: "delay.to.", header: []string{"DELAY-AT", strconv.FormatInt(milli.UnixMilli(), 10)}, at: milli},
		{subject: "delay.to.", header: []string{"Nats-Schedule", "@at " + micro.UTC().Format(time.RFC3339Nano)}, at: micro},
		{subject: "delay.to.", header: []string{"nats-schedule", "@at " + second.UTC().Format(time.RFC3339)}, at: second},
	}
	work := r.worker("t.*")
	due := map[string]time.Time{}
	for i, f := range forms {
		before := time.Now()
		a := r.schedule(f.subject+"t.x", strconv.Itoa(i), f.header...)
		after := time.Now()
		due[a.ID] = a.Due
		if !f.at.IsZero() && !a.Due.Equal(f.at) {
			t.Errorf("%s %v: due %v, want %v", f.subject, f.header, a.Due, f.at)
		}
		if f.at.IsZero() && (a.Due.Before(before.Add(f.in).Truncate(time.Microsecond)) || a.Due.After(after.Add(f.in))) {
			t.Errorf("%s %v: due %v, want %v after %v", f.subject, f.header, a.Due, f.in, before)
		}
	}
	for range forms {
		m := receive(t, work)
		now := time.Now()
		id := m.Header.Get("Delay-Job-Id")
		want, ok := due[id]
		delete(due, id)
		switch {
		case !ok:
			t.Errorf("%q delivered twice", m.Data)
		case now.Before(want):
			t.Errorf("%q delivered %v early", m.Data, want.Sub(now))
		case m.Header.Get("Delay-Due") != want.Format(dueLayout):
			t.Errorf("%q: Delay-Due %q, answered %v", m.Data, m.Header.Get("Delay-Due"), want)
		}
		r.done(m)
	}
}

func TestPastTimesFireAtOnce(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	for _, spec := range []string{"0000000001", "1000000000000", "20010203T040506Z"} {
		a := r.schedule("delay.at."+spec+".t.x", spec)
		m := receive(t, work)
		if string(m.Data) != spec || m.Header.Get("Delay-Due") != a.Due.Format(dueLayout) {
			t.Errorf("%s: delivered %q, due %q", spec, m.Data, m.Header.Get("Delay-Due"))
		}
		r.done(m)
	}
}

// TestControlHeadersInAnyCase checks that each control header is obeyed
// however it is spelt.
func TestControlHeadersInAnyCase(t *testing.T) {
	r := newRig(t)
	spell := []func(string) string{strings.ToLower, strings.ToUpper, func(s string) string { return s }}
	for i, name := range spell {
		id := fmt.Sprintf("job-%d", i)
		r.schedule("delay.to.t.x", "p", name("Delay-In"), "1h", name("Nats-Msg-Id"), id, name("Delay-Max-Attempts"), "3",
			name("Delay-Ack-Wait"), "7s", name("Delay-Backoff"), "1s, 2.5s", name("Delay-Expires"), "2h", name("Delay-Ack"), "Stream",
			name("Delay-Reply-To"), "results", name("Delay-Replace"), "true")
		got := r.state(id)
		if got.MaxAttempts != 3 || got.AckWait != 7*time.Second || !slices.Equal(got.Backoff, []time.Duration{time.Second, 2500 * time.Millisecond}) ||
			got.Expires.Sub(got.Due) != 2*time.Hour || got.Ack != job.AckStream || got.ReplyTo != "results" || len(got.Header) != 0 {
			t.Errorf("%s: stored %+v", name("Delay-In"), got.Job)
		}
	}
}

func TestDefaultsOfControlHeaders(t *testing.T) {
	r := newRig(t)
	a := r.schedule("delay.in.1h.t.x", "p")
	got := r.state(a.ID)
	if got.MaxAttempts != 10 || got.AckWait != 30*time.Second || got.Backoff != nil || got.Expires.Sub(got.Due) != 7*24*time.Hour ||
		got.Ack != job.AckWorker || got.ReplyTo != "" {
		t.Errorf("stored %+v", got.Job)
	}
	a = r.schedule("delay.in.1h.t.x", "p", "Delay-Max-Attempts", "0", "Delay-Expires", "2099-01-01T00:00:00+01:00")
	got = r.state(a.ID)
	if got.MaxAttempts != 0 || !got.Expires.Time().Equal(time.Date(2098, 12, 31, 23, 0, 0, 0, time.UTC)) {
		t.Errorf("stored %+v", got.Job)
	}
}

// ownHeaders are what the bridge adds to a delivery.
var ownHeaders = []string{"Delay-Ack-Wait", "Delay-Attempt", "Delay-Due", "Delay-Job-Id", "Delay-Token", "Nats-Msg-Id"}

func TestHeadersStrippedFromTheDelivery(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	r.schedule("delay.to.t.x", "p", "Delay-In", "0s", "nats-msg-id", "a", "delay-expires", "1h", "DELAY-REPLACE", "true", "Delay-Backoff", "1s",
		"Delay-Max-Attempts", "2", "Nats-Rollup", "all", "nats-rollup", "sub", "Nats-TTL", "1h", "NATS-EXPECTED-LAST-SEQUENCE", "7",
		"Nats-Expected-Stream", "S", "Nats-Request-Info", "{}", "Nats-Other", "kept", "Delayed", "kept", "Natsy", "kept")
	m := receive(t, work)
	want := append([]string{"Delayed", "Nats-Other", "Natsy"}, ownHeaders...)
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(m.Header)); !slices.Equal(got, want) {
		t.Errorf("delivered with %q, want %q", got, want)
	}
	r.done(m)
}

func TestPayloadAndHeadersByteForByte(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	payload := make([]byte, 1024)
	for i := range payload {
		payload[i] = byte(i)
	}
	header := nats.Header{
		"X-Multi":     {"second", "first", "", "second"},
		"x-multi":     {"another spelling"},
		"X-MULTI":     {"and another"},
		"X-Spaces":    {"inner  two"},
		"X-Empty":     {""},
		"X-Unicode":   {"päylöad ☃"},
		"X-Bytes":     {"\x01\x7f\x80\xff"},
		"X-Colon":     {"a: b: c"},
		"odd~name!#%": {"kept"},
		"Status":      {"200"},
		"traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"tracestate":  {"vendor=1"},
		"baggage":     {"k=v"},
	}
	m := &nats.Msg{Subject: "delay.in.0s.t.x", Header: header, Data: payload}
	reply, err := r.nc.RequestMsg(m, patient)
	if err != nil {
		t.Fatal(err)
	}
	if a := decodeAck(t, reply); a.Error != nil {
		t.Fatalf("refused: %+v", *a.Error)
	}
	got := receive(t, work)
	if string(got.Data) != string(payload) {
		t.Error("payload differs")
	}
	for _, name := range ownHeaders {
		delete(got.Header, name)
	}
	if !maps.EqualFunc(got.Header, header, slices.Equal) {
		t.Errorf("headers differ\n got %q\nwant %q", got.Header, header)
	}
	r.done(got)

	for _, size := range []int{0, 1, 100_000} {
		r.schedule("delay.in.0s.t.x", strings.Repeat("x", size))
		got := receive(t, work)
		if len(got.Data) != size {
			t.Errorf("payload of %d bytes delivered with %d", size, len(got.Data))
		}
		r.done(got)
	}
}

func TestDuplicates(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.*")
	first := r.schedule("delay.in.50ms.t.x", "first", "Nats-Msg-Id", "a")
	again := func(when string) {
		t.Helper()
		a := r.schedule("delay.in.0s.t.y", "second", "Nats-Msg-Id", "a")
		if !a.Duplicate || a.ID != "a" || !a.Due.Equal(first.Due) {
			t.Errorf("%s: %+v, want a duplicate due %v", when, a, first.Due)
		}
	}
	again("pending")
	m := receive(t, work)
	again("running")
	r.done(m)
	again("completed")
	if string(m.Data) != "first" {
		t.Errorf("delivered %q", m.Data)
	}
	// Jobs of one connection are handled in order: had a duplicate been stored,
	// it would come before this one.
	r.schedule("delay.in.0s.t.z", "fence")
	m = receive(t, work)
	if string(m.Data) != "fence" {
		t.Errorf("delivered %q %q", m.Header.Get("Nats-Msg-Id"), m.Data)
	}
	r.done(m)
}

func TestCancelFreesTheID(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	r.schedule("delay.in.1h.t.x", "first", "Nats-Msg-Id", "a")
	if _, err := r.store.Cancel(t.Context(), job.At(time.Now()), job.ByIDs("a")); err != nil {
		t.Fatal(err)
	}
	if a := r.schedule("delay.in.0s.t.x", "second", "Nats-Msg-Id", "a"); a.Duplicate {
		t.Errorf("answered %+v", a)
	}
	m := receive(t, work)
	if string(m.Data) != "second" {
		t.Errorf("delivered %q", m.Data)
	}
	r.done(m)
}

// TestReusedIDIsAnotherJob settles a delivery of a job that was cancelled
// after its id went to another job.
func TestReusedIDIsAnotherJob(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "first", "Nats-Msg-Id", "a", "Delay-Backoff", "1h")
	old := receive(t, work)
	if answer := r.settle(old, "-NAK"); answer != "" {
		t.Fatalf("NAK answered %q", answer)
	}
	if _, err := r.store.Cancel(t.Context(), job.At(time.Now()), job.ByIDs("a")); err != nil {
		t.Fatal(err)
	}
	r.schedule("delay.in.0s.t.x", "second", "Nats-Msg-Id", "a")
	m := receive(t, work)
	for _, verb := range []string{"", "+ACK result", "-NAK", "+WPI", "+TERM"} {
		if answer := r.settle(old, verb); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
			t.Errorf("%q of the old delivery answered %q", verb, answer)
		}
	}
	if got := r.state("a"); got.State != job.Running || string(got.Payload) != "second" {
		t.Errorf("state %+v", got)
	}
	if string(m.Data) != "second" || m.Header.Get("Delay-Attempt") != "1" {
		t.Errorf("delivered %q, attempt %s", m.Data, m.Header.Get("Delay-Attempt"))
	}
	r.done(m)
}

func TestReplace(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.*")
	if a := r.schedule("delay.in.1h.t.x", "created", "Nats-Msg-Id", "a", "Delay-Replace", "true"); a.Duplicate {
		t.Errorf("creating answered %+v", a)
	}
	a := r.schedule("delay.in.20ms.t.y", "replaced", "Nats-Msg-Id", "a", "Delay-Replace", "true", "X", "new")
	if a.Duplicate || time.Until(a.Due) > time.Minute {
		t.Errorf("replacing answered %+v", a)
	}
	m := receive(t, work)
	if m.Subject != "t.y" || string(m.Data) != "replaced" || m.Header.Get("X") != "new" || m.Header.Get("Delay-Attempt") != "1" {
		t.Errorf("delivered %q on %s with %v", m.Data, m.Subject, m.Header)
	}
	r.done(m)
	// Replacing what has ended creates it anew; without the header it would be
	// a duplicate.
	if a := r.schedule("delay.in.0s.t.x", "anew", "Nats-Msg-Id", "a", "Delay-Replace", "true"); a.Duplicate {
		t.Errorf("replacing a finished job answered %+v", a)
	}
	if m = receive(t, work); string(m.Data) != "anew" {
		t.Errorf("delivered %q", m.Data)
	}
	r.done(m)
}

// TestReplaceLater moves a job that was about to fire.
func TestReplaceLater(t *testing.T) {
	r := newRig(t)
	work := r.worker("t.x")
	r.schedule("delay.in.400ms.t.x", "early", "Nats-Msg-Id", "a")
	a := r.schedule("delay.in.700ms.t.x", "late", "Nats-Msg-Id", "a", "Delay-Replace", "true")
	m := receive(t, work)
	if now := time.Now(); string(m.Data) != "late" || now.Before(a.Due) {
		t.Errorf("delivered %q, %v before due", m.Data, a.Due.Sub(now))
	}
	r.done(m)
}
