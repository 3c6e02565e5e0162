package workers

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

func FuzzParseAnswer(f *testing.F) {
	for _, s := range []string{"", "+OK", `+OK {"attempt":2,"ack_wait_ms":30000}`, `-ERR {"code":409}`, `-ERR {"code":503}`, "-ERR", "-ERR {", "-ERR null", `{"stale":["a"]}`} {
		f.Add([]byte(s), "")
	}
	f.Add([]byte(nil), "503")
	f.Fuzz(func(t *testing.T, data []byte, status string) {
		m := &nats.Msg{Data: data}
		if status != "" {
			m.Header = nats.Header{"Status": {status}}
		}
		a := parseAnswer(m)
		refused := strings.HasPrefix(string(data), "-ERR")
		switch {
		case a.later && a.refused != nil:
			t.Errorf("%q is both", data)
		case (a.later || a.refused != nil) != (refused || status != "" && len(data) == 0):
			t.Errorf("%q, status %q: %+v", data, status, a)
		case a.refused != nil && !errors.Is(a.refused, ErrLost):
			t.Errorf("%v is no ErrLost", a.refused)
		}
	})
}

func FuzzNewJob(f *testing.F) {
	f.Add("delay.ack.b1.tok-1", "tok-1", "1", "30s", "2026-11-30T09:30:00.000001Z")
	f.Add("delay.ack.b1.a b", "a b", "-1", "-30s", "yesterday")
	f.Add("delay.ack.b1.x.tok", "tok", "", "", "")
	f.Fuzz(func(t *testing.T, reply, token, attempt, wait, due string) {
		j := newJob(&nats.Msg{Subject: "t.x", Reply: reply, Header: nats.Header{
			headerToken: {token}, headerAttempt: {attempt}, headerAckWait: {wait}, headerDue: {due},
		}}, "delay", true)
		if j.token == "" {
			return
		}
		if j.token != token || j.reply != reply || !strings.HasPrefix(reply, "delay.ack.") || !strings.HasSuffix(reply, "."+token) ||
			strings.ContainsAny(token, " .*>\"\\\r\n\t") {
			t.Errorf("token %q, reply %q taken", token, reply)
		}
	})
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\r\nb")
	f.Add(strings.Repeat("\u20ac", 100))
	f.Add("\xff\x00")
	f.Fuzz(func(t *testing.T, s string) {
		got := oneLine(s)
		if len(got) > maxReason || !utf8.ValidString(got) || strings.ContainsAny(got, "\r\n\x00") || strings.TrimSpace(got) != got {
			t.Errorf("oneLine(%q) = %q", s, got)
		}
	})
}
