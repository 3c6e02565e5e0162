package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
)

// given makes a source as flags do.
func given(kv ...string) source {
	src := source{}
	for i := 0; i < len(kv); i += 2 {
		k := keyNamed(kv[i])
		src[k.name] = value{split(k, kv[i+1]), "--" + k.flag()}
	}
	return src
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "bridge.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDefaults(t *testing.T) {
	c, err := loadConfig(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := adapter.Config{
		ID: strings.ReplaceAll(host, ".", "_"), Prefix: "delay", MaxDelay: 3653 * 24 * time.Hour, MaxAttempts: 10, AckWait: 30 * time.Second,
		Expires: 7 * 24 * time.Hour, DeadMaxAge: 30 * 24 * time.Hour, MaxInFlight: 1000, ClaimAhead: 100 * time.Millisecond, ProbeMin: 250 * time.Millisecond,
		ProbeMax: 2 * time.Second, IntakeQueue: 65536, StoreTimeout: 2 * time.Second, Drain: 10 * time.Second, Service: "delaybridge",
		WorkerTTL: 6 * time.Second, WorkerPing: 300 * time.Millisecond,
	}
	if !reflect.DeepEqual(c.bridge, want) {
		t.Errorf("bridge %+v, want %+v", c.bridge, want)
	}
	if c.store != storeLocal || c.http.addr != "127.0.0.1:8090" || c.logLevel != slog.LevelInfo || c.logFormat != "text" ||
		c.redisShards != 8 || c.localMaxJobs != 1_000_000 || c.dedupWindow != 2*time.Minute || c.taskTTL != 2*time.Minute || c.heartbeatTTL != 30*time.Second || c.nats.url() != "nats://127.0.0.1:4222" {
		t.Errorf("configuration %+v", c)
	}
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, "jobs: {ack_wait: 1s, max_attempts: 1, expires: 1h}\ntargets: {allow: [file.>]}\nnats: {url: nats://file:1}\n")
	env := []string{"DELAYBRIDGE_CONFIG=" + file, "DELAYBRIDGE_JOBS_ACK_WAIT=2s", "DELAYBRIDGE_JOBS_MAX_ATTEMPTS=2",
		"DELAYBRIDGE_TARGETS_ALLOW=env.a, env.b", "DELAYBRIDGE_DRAIN=", "NATS_URL=nats://cli:1", "HOME=/x"}
	c, err := loadConfig(given("jobs.ack_wait", "3s", "store", "local", "redis.url", "redis://r:1"), env)
	if err != nil {
		t.Fatal(err)
	}
	b := c.bridge
	if b.AckWait != 3*time.Second || b.MaxAttempts != 2 || b.Expires != time.Hour || b.Drain != 10*time.Second {
		t.Errorf("flag, environment, file, default: %v %v %v %v", b.AckWait, b.MaxAttempts, b.Expires, b.Drain)
	}
	if got := strings.Join(b.AllowTargets, " "); got != "env.a env.b" || c.nats.url() != "nats://cli:1" || c.store != storeLocal {
		t.Errorf("allow %q, NATS %s, store %s", got, c.nats.url(), c.store)
	}
	if c, err := loadConfig(nil, append(env, "DELAYBRIDGE_NATS_URL=own:1")); err != nil || c.nats.url() != "nats://own:1" {
		t.Errorf("%s, %v; want the program's own variable before that of the nats command", c.nats.url(), err)
	}
}

func TestValues(t *testing.T) {
	c, err := loadConfig(given("jobs.max_attempts", "0", "jobs.expires", "1w1d", "dispatch.lanes", "orders.>=5,a=b=6",
		"http.addr", "off", "redis.url", "redis://r:1/2", "log.level", "DEBUG", "nats.url", "a:1,tls://b:2"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.bridge.MaxAttempts >= 0 || c.bridge.Expires != 8*24*time.Hour || c.http.addr != "" || c.store != storeRedis || c.logLevel != slog.LevelDebug ||
		c.nats.url() != "nats://a:1,tls://b:2" {
		t.Errorf("configuration %+v", c)
	}
	if want := []adapter.Lane{{Pattern: "orders.>", MaxInFlight: 5}, {Pattern: "a=b", MaxInFlight: 6}}; !reflect.DeepEqual(c.bridge.Lanes, want) {
		t.Errorf("lanes %v, want %v", c.bridge.Lanes, want)
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	file := writeFile(t, strings.Join([]string{
		"jobs:",
		"  max_attemps: 3",   // 2
		"  ack_wait: [1s]",   // 3
		"  expires: soon",    // 4
		"bogus: {a: 1}",      // 5
		"prefix: a..b",       // 6
		"drain: 10h",         // 7
		"config: other.yaml", // 8
		"store: local",       // 9
		"store: redis",       // 10
		"http:",              // 11
		"  addr:",            // 12
	}, "\n"))
	_, err := loadConfig(given("config", file, "id", "a b", "redis.shards", "5000", "intake.queue", "0", "targets.allow", "a..b",
		"nats.password", "hunter2", "redis.url", "redis://u:hunter2@h:port/", "dispatch.lanes", "x", "dedup_window", "0s"),
		[]string{"DELAYBRIDGE_JOBS_MAX_ATTEMPTS=many", "DELAYBRIDGE_JOBS_MAXDELAY=1h", "DELAYBRIDGE_SERVICE_HOST=10.0.0.1", "DELAYBRIDGE_PORT_8090_TCP=x"})
	var in *inputError
	if !errors.As(err, &in) {
		t.Fatalf("error %v is not an inputError", err)
	}
	for _, want := range []string{
		file + ":2: jobs.max_attemps: no such key",
		file + ":3: jobs.ack_wait: want one value",
		"jobs.expires (" + file + `:4): "soon" is not a duration`,
		file + ":5: bogus: no such key",
		"prefix: name not valid",
		"drain: 10h0m0s is not between",
		file + ":8: config: no such key",
		file + ":10: store: given before, at " + file + ":9",
		file + ":12: http.addr: want one value",
		"id: name not valid",
		"redis.shards: 5000 is more than 4096",
		"intake.queue (--intake-queue): 0 is less than 1",
		"targets.allow: ",
		"nats.password: set without nats.user",
		"redis.url (--redis-url): not a URL",
		`dispatch.lanes (--dispatch-lanes): "x" is not pattern=deliveries`,
		"dedup_window (--dedup-window): must be more than 0",
		`jobs.max_attempts (DELAYBRIDGE_JOBS_MAX_ATTEMPTS): "many" is not`,
		"environment variable DELAYBRIDGE_JOBS_MAXDELAY: no such key",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 19 || t.Failed() {
		t.Errorf("%d errors:\n%v", n, err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password is in the error:\n%v", err)
	}
}

func TestFileForms(t *testing.T) {
	for _, tt := range []struct{ text, err string }{
		{"", ""},
		{"# nothing\n", ""},
		{"jobs:\n", ""},
		{"jobs.max_attempts: 3\n", ""},
		{"dispatch: {lanes: {orders.>: 5}}\n", ""},
		{"dispatch: {lanes: [orders.>=5]}\n", ""},
		{"dispatch: {lanes: orders.>=5}\n", ""},
		{"targets: {allow: [[a]]}\n", "want a list of subject patterns"},
		{"- a\n", "the file: want keys"},
		{"jobs: 5\n", "jobs: want keys"},
		{"a: [\n", "yaml"},
		{"prefix: a\n---\nprefix: b\n", "one document"},
	} {
		c, err := loadConfig(given("config", writeFile(t, tt.text)), nil)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: error %v, want %q", tt.text, err, tt.err)
		}
		if strings.Contains(tt.text, "lanes") && (len(c.bridge.Lanes) != 1 || c.bridge.Lanes[0] != adapter.Lane{Pattern: "orders.>", MaxInFlight: 5}) {
			t.Errorf("%q: lanes %v", tt.text, c.bridge.Lanes)
		}
	}
}

func TestSecretsStayOut(t *testing.T) {
	for _, url := range []string{
		"redis://:hunter2%zz@h/0", "redis://u:hunter2@h/notanumber", "ftp://u:hunter2@h/", "hunter2",
		"redis://u:hunter2@h/0?bogus=1", "redis://u:hunter2@/0", "redis://u:hunter2\x7f@h",
	} {
		_, err := loadConfig(given("redis.url", url), nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "redis.url") {
			t.Errorf("redis.url %q: %v", url, err)
		}
	}
	for _, url := range []string{"nats://hunter2%zz@h", "ftp://hunter2@h", "nats://u:hunter2@", "u:hunter2\x7f@h"} {
		_, err := loadConfig(given("nats.url", url), nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "nats.url") {
			t.Errorf("nats.url %q: %v", url, err)
		}
	}
	if got := withoutSecrets("nats://u:hunter2@h:1", "nats://hunter2@h:2", "redis://h/0?password=hunter2"); got != "nats://h:1,nats://h:2,redis://h/0" {
		t.Errorf("withoutSecrets: %s", got)
	}
}

func TestChanged(t *testing.T) {
	a, errA := loadConfig(given("jobs.ack_wait", "1s", "targets.allow", "a,b"), nil)
	b, errB := loadConfig(given("drain", "1s", "targets.allow", "a,c"), nil)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(a.changed(&b), " "); got != "jobs.ack_wait targets.allow drain" {
		t.Errorf("changed: %s", got)
	}
}

func TestKeys(t *testing.T) {
	flags := map[string]bool{}
	for _, k := range keys {
		if flags[k.flag()] || k.help == "" || k.unit == "" || k.set == nil {
			t.Errorf("%s: given twice or incomplete", k.name)
		}
		flags[k.flag()] = true
	}
	// What scripts rely on.
	for _, name := range []string{"nats-url", "redis-url", "store", "data-dir", "http-addr", "id", "prefix", "config", "log-level", "log-format", "local-max-jobs"} {
		if !flags[name] {
			t.Errorf("no flag --%s", name)
		}
	}
	if k := keyNamed("local.max_jobs"); k.env() != "DELAYBRIDGE_LOCAL_MAX_JOBS" {
		t.Errorf("variable %s", k.env())
	}
}

func TestMemoryLimit(t *testing.T) {
	const meminfo, cgroup = "MemTotal:        8388608 kB\nMemFree: 1 kB\n", "0::/system.slice/bridge.service\n"
	for _, tt := range []struct {
		files map[string]string
		want  int64
	}{
		{nil, fallbackMemory / 2},
		{map[string]string{"/proc/meminfo": meminfo}, 4 << 30},
		{map[string]string{"/proc/meminfo": meminfo, "/sys/fs/cgroup/memory.max": "max\n"}, 4 << 30},
		{map[string]string{"/proc/meminfo": meminfo, "/sys/fs/cgroup/memory.max": "536870912\n"}, 384 << 20},
		{map[string]string{"/proc/meminfo": meminfo, "/proc/self/cgroup": cgroup,
			"/sys/fs/cgroup/system.slice/bridge.service/memory.max": "1073741824\n"}, 768 << 20},
		{map[string]string{"/proc/meminfo": meminfo, "/sys/fs/cgroup/memory/memory.limit_in_bytes": fmt.Sprint(math.MaxInt64)}, 4 << 30},
	} {
		read := func(name string) ([]byte, error) {
			if text, ok := tt.files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}
		if got := memoryLimit(read); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.files, got, tt.want)
		}
	}
}

func TestReference(t *testing.T) {
	const file, begin, end = "../../docs/configuration.md", "<!-- keys -->\n", "<!-- end of keys -->\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(data), begin)
	rows, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the lines around the table", file)
	}
	want := reference()
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if rows != want {
		t.Errorf("the table in %s is not that of the code; run go test ./cmd/bridge -run Reference -update", file)
	}
}

// reference is the table of keys in the documentation.
func reference() string {
	var b strings.Builder
	b.WriteString("| key | value | default | reloads | meaning |\n|---|---|---|---|---|\n")
	for _, k := range keys {
		def, reload := "`"+k.def+"`", "no"
		if k.def == "" {
			def = k.defHelp
		}
		if k.reload {
			reload = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.name, k.unit, def, reload, k.help)
	}
	return b.String()
}
