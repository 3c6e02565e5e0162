package adapter

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

var fuzzNow = job.At(time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC))

// fuzzBridge is as much of a bridge as parsing needs.
func fuzzBridge(f *testing.F) *Bridge {
	f.Helper()
	b := &Bridge{cfg: Config{ID: "b1"}.withDefaults(), out: &nats.Conn{}}
	if err := b.Reload(b.cfg); err != nil {
		f.Fatal(err)
	}
	return b
}

// headerOf reads lines of name and value.
func headerOf(text string) nats.Header {
	h := nats.Header{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			h[name] = append(h[name], value)
		}
	}
	return h
}

func FuzzParse(f *testing.F) {
	b := fuzzBridge(f)
	f.Add("delay.in.5s.t.x", "", []byte("p"))
	f.Add("delay.at.1790000000.t.x", "Delay-Expires:1h\nDelay-Backoff:1s,2.5s\nX:1\nX:2", []byte{})
	f.Add("delay.to.t.x", "Delay-In:1.5h\nNats-Msg-Id:a\nDelay-Replace:true\nDelay-Reply-To:_INBOX.x", []byte{0xff})
	f.Add("delay.to.t.x", "Delay-At:2027-01-01T00:00:00.123456789+05:30\nDelay-Ack:stream\nDelay-Ack-Wait:1ns", []byte(nil))
	f.Add("delay.to.t.x", "Nats-Schedule:@at 2027-01-01T00:00:00Z\nDelay-Max-Attempts:0\nNats-TTL:1h", []byte(nil))
	f.Add("delay.in.1s.t.x", "Delay-Expires:0001-01-01T00:00:00Z\ndelay-ack:none\nNats-Schedule-TTL:1h", []byte(nil))
	f.Add("delay.in.1s.t.x", "Delay-Expires:9999-12-31T23:59:59Z", []byte(nil))
	f.Add("delay.in.1s.t.x", "Delay-Expires:1970-01-01T00:00:00Z", []byte(nil))
	f.Fuzz(func(t *testing.T, subject, header string, payload []byte) {
		var j job.Job
		m := &nats.Msg{Subject: subject, Header: headerOf(header), Data: payload}
		if err := b.parse(m, fuzzNow, &j); err != nil {
			checkRefusal(t, err)
			return
		}
		checkParsed(t, b, &j)
		if !bytes.Equal(j.Payload, payload) {
			t.Errorf("payload %q became %q", payload, j.Payload)
		}
	})
}

// checkRefusal checks the codes of err, and the answer that it becomes.
func checkRefusal(t *testing.T, err *job.Error) {
	t.Helper()
	known := []*job.Error{job.ErrSchedule, job.ErrTarget, job.ErrHeader, job.ErrTooLarge, job.ErrUnavailable}
	if !slices.ContainsFunc(known, func(k *job.Error) bool { return err.Is(k) }) {
		t.Errorf("refused with %v", err)
	}
	if err.Description == "" || len(err.Description) > 1024 {
		t.Errorf("description of %d bytes: %.100q", len(err.Description), err.Description)
	}
	checkPubError(t, err)
}

func checkPubError(t *testing.T, err *job.Error) {
	t.Helper()
	var got struct {
		Stream string
		Error  struct {
			Code        int
			ErrCode     int `json:"err_code"`
			Description string
		}
	}
	body := appendPubError(nil, err)
	if e := json.Unmarshal(body, &got); e != nil || got.Stream != "DELAY" || got.Error.Code != err.Code || got.Error.ErrCode != err.ErrCode ||
		got.Error.Description != strings.ToValidUTF8(err.Description, "\ufffd") && !strings.Contains(got.Error.Description, "\ufffd") {
		t.Errorf("%v becomes %s: %v", err, body, e)
	}
	refusal, ok := bytes.CutPrefix(appendRefusal(nil, err), []byte("-ERR "))
	if !ok || !json.Valid(refusal) {
		t.Errorf("%v becomes %s", err, refusal)
	}
}

// checkParsed checks what must hold of every job that parse lets through.
func checkParsed(t *testing.T, b *Bridge, j *job.Job) {
	t.Helper()
	if j.ID == "" {
		j.ID = "generated"
	}
	if err := j.Check(); err != nil {
		t.Fatal(err)
	}
	if err := subjects.CheckTarget(b.cfg.Prefix, j.Target); err != nil {
		t.Error(err)
	}
	if j.Due <= 0 || j.Due.Sub(fuzzNow) > b.cfg.MaxDelay || j.Expires == 0 || j.AckWait <= 0 {
		t.Errorf("due %v, expires %v, ack wait %v", j.Due.Time(), j.Expires.Time(), j.AckWait)
	}
	for _, h := range j.Header {
		if controlOf(h.Name) != "" {
			t.Errorf("control header %q travels with the job", h.Name)
		}
		if (&nats.Msg{Header: nats.Header{h.Name: {h.Value}}}).Size() == 0 {
			t.Errorf("header name %q cannot be sent", h.Name)
		}
	}
	got, err := job.DecodeRecord(j.ID, string(job.AppendRecord(nil, j)))
	if err != nil {
		t.Fatal(err)
	}
	if want := asStored(*j); !reflect.DeepEqual(got, want) {
		t.Errorf("record holds\n%+v, want\n%+v", got, want)
	}
}

// asStored is j as a record holds it: durations rounded up, and empty lists
// alike.
func asStored(j job.Job) job.Job {
	j.Replace = false
	j.AckWait = (j.AckWait + time.Millisecond - 1).Truncate(time.Millisecond)
	steps := slices.Clone(j.Backoff)
	for i, d := range steps {
		steps[i] = (d + time.Microsecond - 1).Truncate(time.Microsecond)
	}
	j.Backoff = steps
	if j.Payload == nil {
		j.Payload = []byte{}
	}
	return j
}

func FuzzParseVerb(f *testing.F) {
	for _, s := range []string{"", "+ACK", "+ACK result", "+OK", "-NAK", "-NAK 5s", `-NAK {"delay":5}`, "-NAK {}", "+WPI", "+TERM", "+TERM why", "+CLAIM {}",
		`{"stream":"S","seq":1}`, `{"error":{"code":503,"description":"full"}}`, "\x00\xff"} {
		f.Add([]byte(s), "", "")
	}
	f.Add([]byte(nil), "503", "")
	f.Add([]byte(nil), "", "500")
	f.Fuzz(func(t *testing.T, data []byte, status, code string) {
		m := &nats.Msg{Data: data, Header: nats.Header{headerStatus: {status}, headerServiceCode: {code}}}
		a, err := parseAck(m)
		if err != nil {
			if !err.Is(job.ErrHeader) || len(err.Description) > 1024 {
				t.Errorf("refused with %v", err)
			}
			checkPubError(t, err)
			return
		}
		if a.verb > verbMeaningless || a.delay < -1 || len(a.reason) > maxReasonLen+len(code) {
			t.Errorf("%q is read as %+v", data, a)
		}
		if status != "" && a.verb != verbUnanswered && a.verb != verbMeaningless {
			t.Errorf("%q with status %q is read as %+v", data, status, a)
		}
		if a.verb == verbPubAck {
			_ = parsePubAck(a.result)
		}
	})
}

func FuzzPubAck(f *testing.F) {
	f.Add(uint64(17), "id", int64(fuzzNow), true, "not valid")
	f.Add(uint64(1), "\"\\\x00\xff\u2028<", int64(0), false, "quote \" and \xff")
	f.Fuzz(func(t *testing.T, seq uint64, id string, due int64, duplicate bool, text string) {
		body := appendPubAck(nil, seq, id, job.PutResult{Due: job.Time(due), Duplicate: duplicate, Stored: job.StoredMemory})
		var got struct {
			Stream    string
			Seq       uint64
			Duplicate bool
			ID        string
			Due       string
			Stored    string
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got.Stream != "DELAY" || got.Seq != seq || got.Duplicate != duplicate || got.Stored != "memory" ||
			got.Due != job.Time(due).Time().Format(timeLayout) {
			t.Errorf("%s for seq %d, due %d, duplicate %v", body, seq, due, duplicate)
		}
		if want := []rune(id); got.ID != string(want) { // bytes that are no UTF-8 become U+FFFD, in both
			t.Errorf("id %q answered as %q", id, got.ID)
		}
		checkPubError(t, job.ErrHeader.With("%s", text))
	})
}
