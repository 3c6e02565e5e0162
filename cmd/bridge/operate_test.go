package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
)

// devAt runs a bridge with a NATS server of its own until the test ends.
func devAt(t *testing.T) (url string) {
	t.Helper()
	return start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--http-addr", "off", "--id", "one", "--drain", "100ms").ready()["nats"]
}

// step is a command with what it must end with. Every line of out and errs must be
// in stdout and stderr.
type step struct {
	args      string
	code      int
	out, errs string
}

func (s step) run(t *testing.T, url string) result {
	t.Helper()
	fields := strings.Fields(s.args)
	at := 1
	if fields[0] == "dead" {
		at = 2
	}
	args := slices.Clone(fields)
	if len(fields) >= at {
		args = slices.Insert(args, at, "--nats-url", url)
	}
	r := run(t, args...)
	missing := func(text, from string) bool {
		for line := range strings.Lines(text) {
			if !strings.Contains(from, strings.TrimSuffix(line, "\n")) {
				return true
			}
		}
		return false
	}
	if r.code != s.code || missing(s.out, r.out) || missing(s.errs, r.err) {
		t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d, %q, %q", s.args, r.code, r.out, r.err, s.code, s.out, s.errs)
	}
	return r
}

// TestManageJobs follows jobs through the commands, as people see them.
func TestManageJobs(t *testing.T) {
	t.Parallel()
	url := devAt(t)
	for _, s := range []step{
		{"put --id a --in 90m orders.x hello", 0, "a due", ""},
		{"put --id b --in 50h billing.y hi", 0, "b due", ""},
		{"ls", 0, "ID  TARGET     DUE       ATTEMPT  BYTES  STORED\na   orders.x   in 1h29m  0/10     5      memory\nb   billing.y  in 2d1h   0/10     2      memory", ""},
		{"ls --target billing.> --limit 1", 0, "b   billing.y", ""},
		{"ls --limit 1", 0, "a   orders.x", "there are more"},
		{"ls --state running", 0, "LEASE ENDS", ""},
		{"ls --state done", 2, "", "none of pending, running, dead"},
		{"ls --limit 0", 2, "", "--limit: 0 is less than 1"},
		{"ls --scope billing.y", 0, "b   billing.y", ""},
		{"get a", 0, "id            a\nstate         pending\npayload       5 bytes", ""},
		{"get a nope", 1, "id            a", "nope: unknown\n1 of 2 jobs unknown"},
		{"get --scope billing.y a", 1, "", "a: unknown"},
		{"get", 2, "", "no arguments: want ID..."},
		{"get a --json", 2, "", "flag --json comes after an argument"},
		{"put --id=-c --in 90m orders.x hello", 0, "-c due", ""}, // as ids that a bridge makes may begin
		{"get -c", 2, "", "-- stands before arguments that begin with -"},
		{"get -- -c", 0, "id            -c", ""},
		{"cancel -- -c a--json", 1, "-c cancelled\na--json not cancelled: unknown", ""},
		{"reschedule --in 30m a", 0, "a rescheduled, due \n(in 29m59s)", ""},
		{"reschedule --at 2035-01-01T00:00:00Z b", 0, "b rescheduled, due 2035-01-01T00:00:00.000000Z (in ", ""},
		{"reschedule a", 2, "", "give --in or --at"},
		{"reschedule --in 30m nope", 1, "nope not rescheduled: unknown", "1 of 1 jobs not rescheduled"},
		{"pause orders.>", 0, "paused: orders.>", ""},
		{"stats", 0, "bridge            one v0.0.0-test, started \npending           2\npaused            orders.>\nsince its start   3 stored, 0 duplicate, 0 refused", ""},
		{"resume orders.>", 0, "nothing is paused", ""},
		{"pause orders.>.x", 2, "", "> must be the last token"},
		{"cancel b nope", 1, "b cancelled\nnope not cancelled: unknown", "1 of 2 jobs not cancelled"},
		{"cancel b", 1, "b not cancelled: finished", "1 of 1 jobs not cancelled"},
		{"bridges", 0, "BRIDGE  MODE   CIRCUIT  LAST HEARD\none     local  CLOSED", ""},
		{"workers", 0, "WORKER  STATE", ""},
		{"stats --prefix other", 1, "", "no bridge answers on " + url + ` with the prefix "other"`},
		{"stats --timeout 0s", 2, "", "--timeout"},
		{"watch --count -1", 2, "", "--count: -1 is less than 0"},
	} {
		s.run(t, url)
	}
	nc, sub := worker(t, url, "orders.x")
	step{"fire a", 0, "a fired, due ", ""}.run(t, url)
	m := receive(t, sub)
	step{"ls --state running", 0, "a   orders.x  in 29s      1/10     one    memory", ""}.run(t, url)
	step{"cancel a", 1, "a not cancelled: running, attempt 1, at one", "1 of 1 jobs not cancelled"}.run(t, url)
	if _, err := nc.Request(m.Reply, []byte("+ACK"), patience); err != nil {
		t.Fatal(err)
	}
	step{"cancel a", 1, "a not cancelled: finished", ""}.run(t, url)
}

// TestJSONIsForPrograms: one object per line, in the form of the API.
func TestJSONIsForPrograms(t *testing.T) {
	t.Parallel()
	url := devAt(t)
	step{"put --id a --in 90m orders.x hello", 0, "", ""}.run(t, url)
	step{"put --id b --in 91m orders.x hello", 0, "", ""}.run(t, url)
	lines := func(args string) (out []map[string]any) {
		t.Helper()
		for line := range strings.Lines(step{args: args}.run(t, url).out) {
			var o map[string]any
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatalf("%s: %v in %q", args, err, line)
			}
			out = append(out, o)
		}
		return out
	}
	for _, tt := range []struct {
		args, field string
		want        any
		lines       int
	}{
		{"get --json a b", "id", "a", 2},
		{"ls --json", "state", "pending", 2},
		{"reschedule --json --in 2h a", "result", "done", 1},
		{"fire --json b", "result", "done", 1},
		{"pause --json orders.x", "paused", []any{"orders.x"}, 1},
		{"resume --json orders.x", "paused", []any{}, 1},
		{"stats --json", "bridge", "one", 1},
		{"bridges --json", "bridge", "one", 1},
		{"workers --json", "", nil, 0},
		{"dead ls --json", "", nil, 0},
		{"dead purge --json --all", "purged", 0.0, 1},
		{"watch --json --count 1", "rates", map[string]any{"stored": 0.0, "published": 0.0, "completed": 0.0, "retried": 0.0, "dead": 0.0, "refused": 0.0}, 1},
		{"cancel --json a", "result", "done", 1},
	} {
		got := lines(tt.args)
		if len(got) != tt.lines || tt.lines > 0 && fmt.Sprint(got[0][tt.field]) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, want %d lines with %s %v", tt.args, got, tt.lines, tt.field, tt.want)
		}
	}
}

// TestDeadJobs: what is selected is run again, or removed, and nothing else.
func TestDeadJobs(t *testing.T) {
	t.Parallel()
	url := devAt(t)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	term := make(chan string, 20)
	if _, err := nc.QueueSubscribe("orders.*", "workers", func(m *nats.Msg) {
		_, _ = nc.Request(m.Reply, append([]byte("+TERM "), m.Data...), patience)
		term <- m.Header.Get("Delay-Job-Id")
	}); err != nil {
		t.Fatal(err)
	}
	die := func(n int) {
		t.Helper()
		for range n {
			select {
			case <-term:
			case <-time.After(patience):
				t.Fatal("a job does not die")
			}
		}
	}
	for _, id := range []string{"a1", "a2", "a3", "b1", "b2"} {
		step{"put --id " + id + " orders." + id[:1] + " " + map[byte]string{'a': "broken", 'b': "card"}[id[0]], 0, "", ""}.run(t, url)
	}
	die(5)
	for _, s := range []step{
		{"dead ls", 0, "DIED\n1/10     terminated: broken  memory\nb2 ", ""},
		{"dead ls --reason card --limit 1", 0, "b1 ", "there are more"},
		{"dead ls --older 1h", 0, "", ""},
		{"dead requeue", 2, "", "which jobs? give ids, --target, --reason or --older, or --all"},
		{"dead requeue --all a1", 2, "", "not both"},
		{"dead requeue --target orders.a --dry-run", 0, "a1 \na2 \na3 ", ""},
		{"dead purge --all --older 1h", 0, "0 jobs purged", ""},
		{"dead requeue --older tomorrow --all", 2, "", "older"},
		{"dead requeue a1 nope", 1, "a1 requeued, due \nnope not requeued: unknown", "1 of 2 jobs not requeued"},
	} {
		s.run(t, url)
	}
	die(1)
	step{"get a1", 0, "attempt  2/10\nreason   terminated: broken", ""}.run(t, url)
	step{"dead requeue --reason card", 0, "2 jobs requeued", ""}.run(t, url)
	die(2)
	step{"get b1", 0, "attempt  2/10", ""}.run(t, url)
	step{"get a2", 0, "attempt  1/10", ""}.run(t, url)
	for _, s := range []step{
		{"put --id p --in 1h orders.x waits", 0, "", ""},
		{"dead purge p", 1, "p not purged: pending", "1 of 1 jobs not purged"},
		{"dead purge a1 nope", 1, "a1 purged\nnope not purged: unknown", ""},
		{"dead purge --target orders.a", 0, "2 jobs purged", ""},
		{"dead purge --reason card", 0, "2 jobs purged", ""},
		{"dead purge --all", 0, "0 jobs purged", ""},
		{"get p", 0, "state         pending", ""},
		{"dead", 2, "", "say ls or requeue or purge"},
		{"dead bury", 2, "", `dead: unknown command "bury"`},
	} {
		s.run(t, url)
	}
}

// TestWatch: looks and events as lines where nobody looks, until ctrl-C.
func TestWatch(t *testing.T) {
	t.Parallel()
	srv := testnats.Start(t)
	start(t, "serve", "--nats-url", srv.URL(), "--http-addr", "off", "--data-dir=").ready()
	r := run(t, "watch", "--nats-url", srv.URL(), "--count", "2", "--every", "100ms")
	if r.code != 0 || strings.Count(r.out, "mode local pending 0") != 2 {
		t.Errorf("exit %d, %q, %q", r.code, r.out, r.err)
	}
	w := start(t, "watch", "--nats-url", srv.URL(), "--every", "100ms", "--json")
	w.signalAfter(t, srv)
	if code := w.exit(patience); code != 0 {
		t.Errorf("exit %d after ctrl-C", code)
	}
	if !strings.Contains(w.stdout(), `{"event":{"type":"rejected"`) {
		t.Errorf("no event in %q", w.stdout())
	}
	if r := run(t, "watch", "--nats-url", srv.URL(), "--prefix", "other", "--count", "1"); r.code != 1 || !strings.Contains(r.out, "no bridge answers") {
		t.Errorf("without a bridge: exit %d, %q, %q", r.code, r.out, r.err)
	}
}

// TestWatchScreen: rates are of all bridges that answered, and what others wrote
// cannot move the cursor.
func TestWatchScreen(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)
	started := now.Add(-time.Hour)
	w := &watch{s: &session{call: &call{}}, server: "nats://h:4222", rates: map[string]*sample{"one": {}, "two": {}, "gone": {}},
		bridges: []api.Bridge{{ID: "one", Mode: "redis", CircuitState: "CLOSED"}},
		events: []seenEvent{{now, []byte(`{"type":"dead","version":1,"bridge":"one","id":"a","target":"x","reason":"\u001b[2J"}`)},
			{now, []byte(`{"type":"rejected","version":1,"subject":"delay.x","error":{"code":400,"description":"not valid"}}`)}, {now, []byte("no JSON")}},
		stats: api.StatsAnswer{Bridge: "one", Counted: true, Jobs: job.Counts{Pending: 12345}, Due: api.Time{Time: now.Add(3 * time.Second)},
			Paused: []string{"x.>"}, Parked: []api.Parked{{Target: "y", Reason: "no responders"}}}}
	w.rates["one"].take(now.Add(-2*time.Second), started, api.Totals{Stored: 100})
	w.rates["one"].take(now, started, api.Totals{Stored: 110})
	w.rates["two"].take(now.Add(-4*time.Second), started, api.Totals{Stored: 1000})
	w.rates["two"].take(now.Add(-2*time.Second), now, api.Totals{Stored: 3}) // it was restarted
	w.rates["two"].take(now, now, api.Totals{Stored: 9})
	w.rates["gone"].take(now.Add(-70*time.Second), started, api.Totals{})
	w.rates["gone"].take(now.Add(-60*time.Second), started, api.Totals{Stored: 1000})
	const want = `delaybridge  nats://h:4222  09:30:00  (ctrl-C ends)

PENDING  NEXT DUE  RUNNING  DEAD  ONLY ON DISK  WORKERS
12,345   in 3s     0        0     0             0

PER SECOND  stored  published  completed  retried  dead  refused
-           8.0     0.0        0.0        0.0      0.0   0.0

bridge  one  redis  CLOSED  heard now
paused  x.>
parked  y  no responders

EVENTS
09:30:00  dead id=a target=x reason="\x1b[2J" bridge=one
09:30:00  rejected error="not valid" subject=delay.x
09:30:00  no JSON
`
	if got := string(w.screen(now, 0)); got != want {
		t.Errorf("screen\n%s\nwant\n%s", got, want)
	}
	if got := string(redraw([]byte("a\n"))); got != "\x1b[?7l\x1b[Ha\x1b[K\n\x1b[J\x1b[?7h" {
		t.Errorf("redrawn as %q", got)
	}
	// It fits, with the last row for the cursor: more would push the first from the
	// screen. The oldest events go first.
	all := strings.Count(want, "\n")
	for rows := 2; rows <= all+2; rows++ {
		got := string(w.screen(now, rows))
		if n := strings.Count(got, "\n"); n > rows-1 || n < min(rows-1, all-5) {
			t.Errorf("%d lines for %d rows", n, rows)
		}
		if rows == all && (!strings.HasSuffix(got, "subject=delay.x\n09:30:00  no JSON\n") || strings.Contains(got, "dead id=a")) {
			t.Errorf("for %d rows\n%s", rows, got)
		}
	}
}

// signalAfter sends ctrl-C once the process has shown an event that the test caused.
func (p *process) signalAfter(t *testing.T, srv *testnats.Server) {
	t.Helper()
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !strings.Contains(p.stdout(), `"event"`); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("no event in %q", p.stdout())
		}
		if err := nc.Publish("delay.in.x.orders.x", nil); err != nil { // refused, and nobody waits for the answer
			t.Fatal(err)
		}
	}
	p.signal(syscall.SIGINT)
}
