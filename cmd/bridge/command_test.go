package main

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		code int
		out  string // in stdout
		err  string // in stderr
	}{
		{"", 2, "", "no command given"},
		{"help", 0, "serve", ""},
		{"--help", 0, "serve", ""},
		{"frobnicate", 2, "", `unknown command "frobnicate"`},
		{"frobnicate", 2, "", "  put "},
		{"version", 0, "delaybridge v0.0.0-test (go", ""},
		{"version --json", 0, `"version":"v0.0.0-test"`, ""},
		{"version x", 2, "", `unexpected argument "x"`},
		{"serve --help", 0, "--jobs-max-attempts DELIVERIES", ""},
		{"dev -h", 0, "--nats-url", ""},
		{"demo --help", 0, "usage: delaybridge demo", ""},
		{"put --help", 0, "TARGET PAYLOAD", ""},
		{"bench --help", 0, "--self", ""},
		{"serve --frobnicate", 2, "", "-frobnicate"},
		{"serve x", 2, "", `unexpected argument "x"`},
		{"serve --store redis", 2, "", "store: redis needs redis.url"},
		{"serve --config /nowhere/x.yaml", 2, "", "/nowhere/x.yaml"},
		{"serve --nats-creds /nowhere/x.creds", 2, "", "nats.creds"},
		{"put orders.x", 2, "", "1 arguments instead of TARGET PAYLOAD"},
		{"put orders.x hello --in 5s", 2, "", "flag --in comes after an argument"},
		{"put --in 5x orders.x hello", 2, "", "--in"},
		{"put --at tomorrow orders.x hello", 2, "", "--at"},
		{"put --in 5s --at 20301130T093000Z orders.x hello", 2, "", "--in and --at"},
		{"put --header Delay-In orders.x hello", 2, "", "name=value"},
		{"put --prefix a..b orders.x hello", 2, "", "prefix"},
		{"put --nats-url nats://127.0.0.1:1 orders.x hello", 1, "", "NATS at nats://127.0.0.1:1"},
		{"journal --help", 0, "journal salvage", ""},
		{"journal", 2, "", "say inspect or salvage"},
		{"journal burn", 2, "", `unknown command "burn"`},
		{"journal inspect --help", 0, "--data-dir DIRECTORY", ""},
		{"journal inspect", 2, "", "--data-dir is needed"},
		{"journal salvage --data-dir /nowhere", 2, "", "--to is needed"},
		{"journal inspect --data-dir /nowhere", 1, "", "/nowhere"},
		{"serve --redis-url redis://127.0.0.1:1 --data-dir=", 2, "", "data_dir: must not be empty"},
		{"serve --failover-dwell 1m --failover-max-dwell 1s", 2, "", "failover.max_dwell"},
		{"serve --durability remote", 2, "", "durability"},
		{"serve --durability local --data-dir=", 2, "", "durability: local needs data_dir"},
		{"serve --local-max-bytes 9999999TiB", 2, "", "local.max_bytes"},
		{"bench --scenario sleep", 2, "", "none of intake, burst, steady"},
		{"bench --jobs 2000000", 2, "", "--jobs: 2000000 is not between 1 and 1000000"},
	} {
		r := run(t, strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.out, tt.out) || !strings.Contains(r.err, tt.err) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want %d, %q, %q", tt.args, r.code, r.out, r.err, tt.code, tt.out, tt.err)
		}
	}
}

func TestPut(t *testing.T) {
	t.Parallel()
	dev := start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--http-addr", "off")
	url := dev.ready()["nats"]

	r := runWith(t, nil, "from stdin", "put", "--nats-url", url, "--json", "--id", "a", "--in", "1h", "orders.x", "-")
	var receipt struct {
		ID, Stored string
		Due        time.Time
		Duplicate  bool
		Seq        uint64
	}
	if err := json.Unmarshal([]byte(r.out), &receipt); err != nil || r.code != 0 {
		t.Fatalf("exit %d, %v, stdout %q, stderr %q", r.code, err, r.out, r.err)
	}
	if in := time.Until(receipt.Due); receipt.ID != "a" || receipt.Stored != "memory" || receipt.Duplicate || receipt.Seq == 0 || in < 59*time.Minute || in > time.Hour {
		t.Errorf("receipt %+v, due in %v", receipt, in)
	}
	for _, tt := range []struct {
		args      []string
		code      int
		out, errs string
	}{
		{[]string{"--id", "a", "orders.x", "again"}, 0, "duplicate", ""},
		{[]string{"--id", "a", "--replace", "--at", "2035-01-01T00:00:00Z", "orders.x", "new"}, 0, "a due 2035-01-01T00:00:00.000000Z stored memory\n", ""},
		{[]string{"orders.>", "x"}, 1, "", "refused with 400/10190"},
		// None of these is a job that is due now.
		{[]string{"--in", "", "orders.x", "x"}, 2, "", "--in: schedule not valid"},
		{[]string{"--at=", "orders.x", "x"}, 2, "", "--at: "},
		{[]string{"--header", "Delay-In=1h", "orders.x", "x"}, 1, "", "refused with 400/10189: header Delay-In"},
		{[]string{"orders.x", "--in=1h"}, 2, "", "flag --in=1h comes after an argument"},
		{[]string{"orders.x", "-json"}, 2, "", "flag -json comes after an argument"},
		{[]string{"--id", "d", "--in", "1h", "--", "orders.x", "--json"}, 0, "d due", ""},
		{[]string{"--id", "e", "--in", "1h", "orders.x", "--colour"}, 0, "e due", ""},
		{[]string{"--id", "f\ng", "--in", "1h", "orders.x", "x"}, 1, "", "a line break cannot be sent"},
		{[]string{"--header", "Delay Expires=1h", "orders.x", "x"}, 1, "", `refused with 400/20400: header "Delay Expires"`},
		{[]string{"--json", "--id", "\xff", "--in", "1h", "orders.x", "x"}, 0, `{"id":{"base64":"/w=="},"stored"`, ""},
		{[]string{"--header", "Delay-Ack-Wait=0s", "orders.x", "x"}, 1, "", "refused with 400/20400"},
		{[]string{"--prefix", "other", "orders.x", "x"}, 1, "", "no bridge answers on " + url + ` with the prefix "other"`},
	} {
		r := run(t, append([]string{"put", "--nats-url", url}, tt.args...)...)
		if r.code != tt.code || !strings.Contains(r.out, tt.out) || !strings.Contains(r.err, tt.errs) {
			t.Errorf("put %q: exit %d, stdout %q, stderr %q; want %d, %q, %q", tt.args, r.code, r.out, r.err, tt.code, tt.out, tt.errs)
		}
	}
	if r := runWith(t, []string{"NATS_URL=" + url}, "", "put", "orders.x", "x"); r.code != 0 {
		t.Errorf("put with NATS_URL: exit %d, %s", r.code, r.err)
	}
}

func TestDevWantsItsPort(t *testing.T) {
	t.Parallel()
	first := start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--http-addr", "off")
	url := first.ready()["nats"]
	r := run(t, "dev", "--nats-url", url, "--http-addr", "off")
	if r.code != 1 || !strings.Contains(r.err, "cannot listen on "+strings.TrimPrefix(url, "nats://")) || !strings.Contains(r.err, "--nats-url") {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
}

func TestDevAsksForItsUser(t *testing.T) {
	t.Parallel()
	dev := start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--nats-user", "u", "--nats-password", "p", "--http-addr", "off")
	url := dev.ready()["nats"]
	if r := run(t, "put", "--nats-url", url, "orders.x", "x"); r.code != 2 || !strings.Contains(r.err, "refuses these credentials") {
		t.Errorf("without user: exit %d, %s", r.code, r.err)
	}
	if r := runWith(t, []string{"NATS_USER=u", "NATS_PASSWORD=p"}, "", "put", "--nats-url", url, "orders.x", "x"); r.code != 0 {
		t.Errorf("with user: exit %d, %s", r.code, r.err)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := run(t, "demo")
	if took := time.Since(began); r.code != 0 || took > 15*time.Second {
		t.Fatalf("exit %d after %v\n%s%s", r.code, took, r.out, r.err)
	}
	for _, want := range []string{
		"scheduled  long", "KILL  ", "delivered  long    attempt 2", "done       long    attempt 2",
		"6 scheduled, 6 done, 0 lost, 0 early, 1 delivered again",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	recovered := regexp.MustCompile(`w[12] has it (\d+) ms after the kill; without heartbeats it would have waited for the lease: 30 s`).FindStringSubmatch(r.out)
	if recovered == nil {
		t.Fatalf("no line says when the job of the killed worker arrived at the other:\n%s", r.out)
	}
	if ms, err := strconv.Atoi(recovered[1]); err != nil || ms >= 1000 {
		t.Errorf("it arrived %s ms after the kill, want less than a second\n%s", recovered[1], r.out)
	}
}

func TestBench(t *testing.T) {
	t.Parallel()
	dev := start(t, "dev", "--nats-url", "nats://127.0.0.1:0", "--http-addr", "off")
	url := dev.ready()["nats"]
	r := run(t, "bench", "--nats-url", url, "--scenario", "burst,steady", "--jobs", "1000", "--duration", "1s", "--rate", "100", "--json")
	if r.code != 0 {
		t.Fatalf("exit %d, %s", r.code, r.err)
	}
	dec := json.NewDecoder(strings.NewReader(r.out))
	for _, scenario := range []string{"burst", "steady"} {
		var m measurement
		if err := dec.Decode(&m); err != nil || m.Scenario != scenario || m.Rate <= 0 || m.Plain <= 0 || m.Early != 0 {
			t.Errorf("%s: %v, %+v", scenario, err, m)
		}
	}
	if r := run(t, "bench", "--nats-url", url, "--prefix", "other"); r.code != 1 || !strings.Contains(r.err, "no bridge answers") {
		t.Errorf("without a bridge: exit %d, %s", r.code, r.err)
	}
}
