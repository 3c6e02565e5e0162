package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

// TestPutFile: a line that is wrong is named, and keeps no other from being put.
func TestPutFile(t *testing.T) {
	t.Parallel()
	url := devAt(t)
	var b strings.Builder
	for i := 1; i <= 20_000; i++ {
		switch i {
		case 7:
			b.WriteString("nonsense\n")
		case 8:
			b.WriteString(`{"target":"orders.*","payload":"x"}` + "\n")
		case 19_999:
			b.WriteString(`{"target":"orders.x","payload":"x","colour":"red"}` + "\n")
		default:
			fmt.Fprintf(&b, `{"target":"orders.x","payload":{"n":%d},"in":"1h","id":"j%d"}`+"\n", i, i)
		}
	}
	file := filepath.Join(t.TempDir(), "jobs.ndjson")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, "put", "--nats-url", url, "--file", file)
	if r.code != 1 || !strings.Contains(r.out, "20,000 jobs: 19,997 accepted, 0 duplicate, 3 refused") {
		t.Errorf("exit %d, %q", r.code, r.out)
	}
	for _, want := range []string{"line 7: not a job as JSON", "line 8: target not valid", `line 19999: not a job as JSON: json: unknown field "colour"`, "3 of 20,000 jobs not put"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %q", want, r.err)
		}
	}
	r = runWith(t, nil, b.String(), "put", "--nats-url", url, "--file", "-", "--json")
	line := 0
	for text := range strings.Lines(r.out) {
		line++
		var o struct {
			Line      int
			ID        string
			Due       time.Time
			Duplicate bool
			Error     *struct{ Code int }
		}
		if err := json.Unmarshal([]byte(text), &o); err != nil || o.Line != line {
			t.Fatalf("line %d: %v in %q", line, err, text)
		}
		if wrong := line == 7 || line == 8 || line == 19_999; wrong != (o.Error != nil) || !wrong && (o.ID != fmt.Sprint("j", line) || !o.Duplicate || o.Due.IsZero()) {
			t.Errorf("%s", text)
		}
	}
	if line != 20_000 || r.code != 1 || !strings.Contains(r.err, "0 accepted, 19,997 duplicate, 3 refused") {
		t.Errorf("%d lines, exit %d, %q", line, r.code, r.err)
	}
	if r := run(t, "put", "--nats-url", url, "--prefix", "other", "--file", file); r.code != 1 || !strings.Contains(r.err, "no bridge answers") {
		t.Errorf("without a bridge: exit %d, %q", r.code, r.err)
	}
}

// TestPutFileThatTrickles: lines that come now and then are put as they come, and
// ctrl-C does not wait for the next one.
func TestPutFileThatTrickles(t *testing.T) {
	t.Parallel()
	url := devAt(t)
	fifo := filepath.Join(t.TempDir(), "jobs")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "put", "--nats-url", url, "--json", "--file", fifo)
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 1; n <= 2; n++ {
		if _, err := fmt.Fprintf(w, `{"target":"orders.x","in":"1h","id":"j%d"}`+"\n", n); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); strings.Count(p.stdout(), "\n") < n; <-tick.C {
			if time.Now().After(end) {
				t.Fatalf("line %d is not put while the file stays open: %q", n, p.stdout())
			}
		}
	}
	p.signal(os.Interrupt)
	p.await("2 jobs: 2 accepted")
	p.await("interrupted after line 2")
	if code := p.exit(patience); code != 1 {
		t.Errorf("exit %d", code)
	}
}

// TestPutFileRefusedByNATS: what NATS does not let through is refused, and has surely
// not been stored.
func TestPutFileRefusedByNATS(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t, testnats.Config(`authorization { users = [
		{ user: b, password: p }, { user: u, password: p, permissions: { publish: ["delay.to.orders.>"] } } ] }`))
	start(t, "serve", "--nats-url", srv.URL(), "--nats-user", "b", "--nats-password", "p", "--http-addr", "off", "--data-dir=").ready()
	const jobs = `{"target":"orders.x","in":"1h"}
{"target":"billing.x","in":"1h"}
{"target":"orders.x","in":"1h","headers":{"my colour":"red"}}
`
	r := runWith(t, nil, jobs, "put", "--nats-url", srv.URL(), "--nats-user", "u", "--nats-password", "p", "--file", "-")
	if r.code != 1 || !strings.Contains(r.out, "3 jobs: 1 accepted, 0 duplicate, 2 refused;") {
		t.Errorf("exit %d, %q", r.code, r.out)
	}
	for _, want := range []string{"line 2: this NATS user may not publish to delay.to.billing.x", `line 3: header "my colour"`} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %q", want, r.err)
		}
	}
}

// TestPutFileEveryLineHasAResult: also those after one that found no bridge.
func TestPutFileEveryLineHasAResult(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("delay.to.there", func(m *nats.Msg) { _ = m.Respond([]byte(`{"id":"a","seq":1}`)) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r := runWith(t, nil, `{"target":"there"}`+"\n"+`{"target":"gone"}`+"\n"+`{"target":"there"}`+"\n", "put", "--nats-url", srv.URL(), "--json", "--file", "-")
	if r.code != 1 || strings.Count(r.out, "\n") != 3 || !strings.Contains(r.out, `{"line":3,"id":"a"`) ||
		!strings.Contains(r.err, "3 jobs: 2 accepted, 0 duplicate, 0 refused, 1 without a bridge") || !strings.Contains(r.err, "no bridge answers") {
		t.Errorf("exit %d, %q, %q", r.code, r.out, r.err)
	}
}

func TestPutFileUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, errs string }{
		{"put --file x --in 5s", "--in: not with --file"},
		{"put --file x --id a", "--id: not with --file"},
		{"put --file x orders.x hello", "TARGET and PAYLOAD: not with --file"},
		{"put --file /nowhere/x --nats-url nats://127.0.0.1:1", "NATS at"},
		{"put hello", "1 arguments instead of TARGET PAYLOAD"},
	} {
		if r := run(t, strings.Fields(tt.args)...); r.code == 0 || !strings.Contains(r.err, tt.errs) {
			t.Errorf("%s: exit %d, %q", tt.args, r.code, r.err)
		}
	}
}

func TestJobLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		line, payload string
		in            time.Duration
		at            time.Time
		wrong         string
	}{
		{line: `{"target":"x"}`},
		{line: `{"target":"x","payload":"a\nb","in":"1h30m"}`, payload: "a\nb", in: 90 * time.Minute},
		{line: `{"target":"x","payload":{"a": 1},"at":"2030-01-01T00:00:00Z"}`, payload: `{"a": 1}`, at: at},
		{line: `{"target":"x","payload_base64":"/wA="}`, payload: "\xff\x00"},
		{line: `{"target":"x","payload":"a","payload_base64":"/wA="}`, wrong: "give one of them"},
		{line: `{"target":"x","payload_base64":"?"}`, wrong: "payload_base64"},
		{line: `{"target":"x","in":"1h","at":"2030-01-01T00:00:00Z"}`, wrong: "give one of them"},
		{line: `{"target":"x","in":"soon"}`, wrong: "--in"},
		{line: `{"target":"x","in":""}`, wrong: "--in"},
		{line: `{"target":"x","at":""}`, wrong: "--at"},
		{line: `{"target":"x","in":null}`},
		{line: "{\"target\":\"x\",\"payload\":\"\xff\"}", wrong: "not UTF-8"},
		{line: `{"payload":"x"}`, wrong: "no target"},
		{line: `{"target":"x"} {"target":"y"}`, wrong: "more than one value"},
		{line: `{"target":"x","headers":{"a":1}}`, wrong: "not a job"},
		{line: `[]`, wrong: "not a job"},
	} {
		item, err := readJobLine([]byte(tt.line))
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v, want %q", tt.line, err, tt.wrong)
			}
		case err != nil || string(item.Payload) != tt.payload || item.In != tt.in || !item.At.Equal(tt.at):
			t.Errorf("%s: %+v, %v", tt.line, item, err)
		}
	}
	item, err := readJobLine([]byte(`{"target":"x","id":"a","replace":true,"headers":{"Colour":["red","blue"],"Delay-Ack-Wait":"5s"}}`))
	if err != nil || item.ID != "a" || !item.Replace || len(item.Header["Colour"]) != 2 || item.Header.Get("Delay-Ack-Wait") != "5s" {
		t.Errorf("%+v, %v", item, err)
	}
}

// FuzzJobLine: a line is a job or an error.
func FuzzJobLine(f *testing.F) {
	f.Add([]byte(`{"target":"x","payload":{"a":1},"in":"1h","headers":{"a":["b"]}}`))
	f.Add([]byte(`{"target":"x","payload_base64":"/w==","at":"2030-01-01T00:00:00Z","replace":true}`))
	f.Add([]byte(`{"target":`))
	f.Fuzz(func(t *testing.T, line []byte) {
		item, err := readJobLine(line)
		if err == nil && item.Target == "" {
			t.Errorf("%q is a job without a target", line)
		}
	})
}
