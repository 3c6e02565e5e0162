package job

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fullJob uses every field of the record.
func fullJob() Job {
	return Job{
		ID: "id", Generated: true, Incarnation: 0x0102030405060708, Target: "orders.new",
		Due: 0x1112131415161718, Expires: 0x1112131415161718 + 300, Ack: AckStream, AckWait: 0x01020304 * time.Millisecond,
		MaxAttempts: math.MaxUint32, Backoff: []time.Duration{time.Second, 300 * time.Microsecond}, ReplyTo: "results",
		Header:  []Field{{"X-b", "1"}, {"x-B", "\x00\xff"}, {"A", ""}, {"X-b", "2"}},
		Payload: []byte("payload\x00\xff"),
	}
}

// edited returns a full job with a change.
func edited(f func(*Job)) Job {
	j := fullJob()
	f(&j)
	return j
}

func TestRecordRoundTrip(t *testing.T) {
	for name, j := range map[string]Job{
		"full":           fullJob(),
		"bare":           {ID: "id", Target: "t", Payload: []byte{}},
		"no payload":     edited(func(j *Job) { j.Payload = []byte{} }),
		"no header":      edited(func(j *Job) { j.Header = nil }),
		"no expiry":      edited(func(j *Job) { j.Expires = 0 }),
		"expired at due": edited(func(j *Job) { j.Expires = j.Due }),
		"expired before": edited(func(j *Job) { j.Expires = j.Due - 1 }),
		"long past":      edited(func(j *Job) { j.Due, j.Expires = -5, -4 }),
		"no backoff":     edited(func(j *Job) { j.Backoff = nil }),
		"long backoff":   edited(func(j *Job) { j.Backoff = []time.Duration{0, maxBackoff} }),
		"no reply":       edited(func(j *Job) { j.ReplyTo = "" }),
		"not generated":  edited(func(j *Job) { j.Generated = false }),
		"ack none":       edited(func(j *Job) { j.Ack = AckNone }),
		"no limit":       edited(func(j *Job) { j.MaxAttempts = 0 }),
		"long target":    edited(func(j *Job) { j.Target = strings.Repeat("t", 255) }),
		"longest lease":  edited(func(j *Job) { j.AckWait = MaxAckWait }),
		"long header":    edited(func(j *Job) { j.Header = []Field{{strings.Repeat("n", 300), strings.Repeat("v", 70_000)}} }),
	} {
		rec := string(AppendRecord(nil, &j))
		got, err := DecodeRecord("id", rec)
		if err != nil || !reflect.DeepEqual(got, j) {
			t.Errorf("%s: decoded %+v, %v\nwant %+v", name, got, err, j)
		}
		if target, err := RecordTarget(rec); err != nil || target != j.Target {
			t.Errorf("%s: RecordTarget = %q, %v, want %q", name, target, err, j.Target)
		}
		if got := RecordGenerated(rec); got != j.Generated {
			t.Errorf("%s: RecordGenerated = %v, want %v", name, got, j.Generated)
		}
	}
}

// TestRecordLayout pins the bytes: stores keep them for years and scripts read
// them in place.
func TestRecordLayout(t *testing.T) {
	j := fullJob()
	const want = "\x01" + // version
		"\x01\x02\x03\x04\x05\x06\x07\x08" + // incarnation
		"\x11\x12\x13\x14\x15\x16\x17\x18" + // due
		"\x01\x02\x03\x04" + // ack wait
		"\x0aorders.new" +
		"\x7d" + // flags: stream, and all others
		"\xff\xff\xff\xff\x0f" + // attempts
		"\xac\x02" + // expires, 300 after due
		"\x02\xc0\x84\x3d\xac\x02" + // backoff: 1,000,000 and 300
		"\x07results" +
		"\x04\x03X-b\x011\x03x-B\x02\x00\xff\x01A\x00\x03X-b\x012" +
		"payload\x00\xff"
	prefix := []byte("before")
	got := AppendRecord(prefix, &j)
	if string(got) != "before"+want {
		t.Errorf("record\n%q, want\n%q", got, "before"+want)
	}
	for _, off := range []struct {
		at   int
		want byte
	}{{OffIncarnation, 0x01}, {OffDue, 0x11}, {OffAckWait, 0x01}, {OffTarget, 10}} {
		if want[off.at] != off.want {
			t.Errorf("the byte at offset %d is %#x, want %#x", off.at, want[off.at], off.want)
		}
	}
}

func TestRecordRoundsUp(t *testing.T) {
	j := Job{Target: "t", AckWait: time.Millisecond + 1, Backoff: []time.Duration{1, 1001, 2000}}
	got, err := DecodeRecord("", string(AppendRecord(nil, &j)))
	want := []time.Duration{time.Microsecond, 2 * time.Microsecond, 2 * time.Microsecond}
	if err != nil || got.AckWait != 2*time.Millisecond || !reflect.DeepEqual(got.Backoff, want) {
		t.Errorf("ack wait %v, backoff %v, error %v, want 2ms, %v", got.AckWait, got.Backoff, err, want)
	}
}

func TestDecodeRecordCopiesPayload(t *testing.T) {
	j := fullJob()
	rec := string(AppendRecord(nil, &j))
	got, err := DecodeRecord("id", rec)
	if err != nil {
		t.Fatal(err)
	}
	clear(got.Payload)
	if again, _ := DecodeRecord("id", rec); !bytes.Equal(again.Payload, j.Payload) {
		t.Errorf("writing to a payload changed the record: %q", again.Payload)
	}
}

func TestDecodeRecordRefusesDamage(t *testing.T) {
	j := edited(func(j *Job) { j.Payload = nil })
	rec := string(AppendRecord(nil, &j))
	for n := range len(rec) {
		if _, err := DecodeRecord("id", rec[:n]); !errors.Is(err, ErrRecord) {
			t.Errorf("cut to %d bytes of %d: error %v, want ErrRecord", n, len(rec), err)
		}
	}
	flags := OffTarget + 1 + len(j.Target)
	for name, change := range map[string]string{
		"version":       "\x02" + rec[1:],
		"unknown flag":  rec[:flags] + "\xfd" + rec[flags+1:],
		"ack mode":      rec[:flags] + "\x7f" + rec[flags+1:],
		"attempts":      rec[:flags+1] + "\x80\x80\x80\x80\x10" + rec[flags+6:],
		"endless":       rec[:flags+1] + strings.Repeat("\xff", 20),
		"backoff count": rec[:flags] + "\x10\x00\xff\xff\xff\xff\x0f",
		"backoff":       rec[:flags] + "\x10\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"header count":  rec[:flags] + "\x40\x00\x02\x00\x00\x00",
	} {
		if got, err := DecodeRecord("id", change); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: decoded %+v, %v, want ErrRecord", name, got, err)
		}
	}
	for _, short := range []string{"", "\x01", rec[:OffTarget], rec[:OffTarget+1], rec[:OffTarget+len(j.Target)], "\x02" + rec[1:]} {
		if target, err := RecordTarget(short); !errors.Is(err, ErrRecord) {
			t.Errorf("RecordTarget of %d bytes = %q, %v, want ErrRecord", len(short), target, err)
		}
	}
}

func TestCheck(t *testing.T) {
	good := fullJob()
	if err := good.Check(); err != nil {
		t.Errorf("Check refuses %+v: %v", good, err)
	}
	for name, c := range map[string]struct {
		job  Job
		want *Error
	}{
		"no id":            {edited(func(j *Job) { j.ID = "" }), ErrHeader},
		"long id":          {edited(func(j *Job) { j.ID = strings.Repeat("i", 256) }), ErrHeader},
		"no target":        {edited(func(j *Job) { j.Target = "" }), ErrTarget},
		"long target":      {edited(func(j *Job) { j.Target = strings.Repeat("t", 256) }), ErrTarget},
		"negative lease":   {edited(func(j *Job) { j.AckWait = -1 }), ErrHeader},
		"long lease":       {edited(func(j *Job) { j.AckWait = MaxAckWait + 1 }), ErrHeader},
		"ack mode":         {edited(func(j *Job) { j.Ack = 3 }), ErrHeader},
		"negative backoff": {edited(func(j *Job) { j.Backoff[1] = -1 }), ErrHeader},
		"long backoff":     {edited(func(j *Job) { j.Backoff[1] = math.MaxInt64 }), ErrHeader},
	} {
		var e *Error
		if err := c.job.Check(); !errors.Is(err, c.want) || !errors.As(err, &e) {
			t.Errorf("%s: Check = %v, want an *Error that is %v", name, err, c.want)
		}
	}
}

// FuzzDecodeRecord: no bytes make DecodeRecord panic, and what it can read is
// written and read again without a change.
func FuzzDecodeRecord(f *testing.F) {
	full, bare := fullJob(), Job{Target: "t"}
	f.Add(string(AppendRecord(nil, &full)))
	f.Add(string(AppendRecord(nil, &bare)))
	f.Add("\x01" + strings.Repeat("\xff", 40))
	f.Fuzz(func(t *testing.T, rec string) {
		j, err := DecodeRecord("id", rec)
		if err != nil {
			return
		}
		if target, err := RecordTarget(rec); err != nil || target != j.Target || RecordGenerated(rec) != j.Generated {
			t.Fatalf("read in place: target %q, %v, generated %v; decoded %+v", target, err, RecordGenerated(rec), j)
		}
		written := string(AppendRecord(nil, &j))
		again, err := DecodeRecord("id", written)
		if len(j.Header) == 0 {
			j.Header = nil // flagged, but empty
		}
		if err != nil || !reflect.DeepEqual(again, j) {
			t.Fatalf("decoded %+v, then %+v, %v", j, again, err)
		}
		if twice := string(AppendRecord(nil, &again)); twice != written {
			t.Fatalf("written as %q, then %q", written, twice)
		}
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	j := fullJob()
	var buf []byte
	for b.Loop() {
		buf = AppendRecord(buf[:0], &j)
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	j := fullJob()
	rec := string(AppendRecord(nil, &j))
	for b.Loop() {
		if _, err := DecodeRecord("id", rec); err != nil {
			b.Fatal(err)
		}
	}
}
