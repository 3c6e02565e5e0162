package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// keyValues gives keys and their values in turn.
func keyValues(kv ...string) source {
	src := source{}
	for i := 0; i+1 < len(kv); i += 2 {
		src[kv[i]] = value{split(keyNamed(kv[i]), kv[i+1]), "test"}
	}
	return src
}

func newDoctor(t *testing.T, kv ...string) *doctor {
	t.Helper()
	cfg, err := loadConfig(keyValues(kv...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &doctor{cfg: &cfg}
}

// found is the check of that name that matters most, and says text.
func (d *doctor) found(name, text string) (best check) {
	rank := []string{"", levelOK, levelInfo, levelWarning, levelProblem}
	for _, c := range d.checks {
		all := strings.Join([]string{c.Seen, c.Why, c.Do}, "\n")
		if c.Name == name && strings.Contains(all, text) && slices.Index(rank, c.Level) > slices.Index(rank, best.Level) {
			best = c
		}
	}
	return best
}

func (d *doctor) want(t *testing.T, name, level, text string) {
	t.Helper()
	c := d.found(name, text)
	if c.Level != level {
		t.Errorf("%s is %q with %q, want %s; all:\n%+v", name, c.Level, text, level, d.checks)
	}
	if finding := level == levelWarning || level == levelProblem; finding && (c.Why == "" || c.Do == "") {
		t.Errorf("%s does not say why it matters and what to do: %+v", name, c)
	}
}

// ofTheMachine are the checks of what the machine is like that runs the tests.
var ofTheMachine = []string{"nats.connection", "redis.connection", "redis.write", "redis.clock", "disk.sync", "disk.room", "disk.kind", "disk.inodes"}

// TestDoctorFindsNothing with everything as it should be, before a bridge runs and
// while one does.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	srv, server := testnats.Start(t, testnats.JetStream(t.TempDir())), testredis.Start(t, "--maxmemory", "1gb")
	dir := t.TempDir()
	args := []string{"--nats-url", srv.URL(), "--redis-url", server.URL(), "--id", "one", "--data-dir", dir}
	names := map[string]bool{}
	look := func() {
		t.Helper()
		r := run(t, append([]string{"doctor", "--json"}, args...)...)
		var up checkup
		dec := json.NewDecoder(strings.NewReader(r.out))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&up); err != nil {
			t.Fatalf("%v in %s%s", err, r.out, r.err)
		}
		if want := min(up.Problems+up.Warnings, 1); r.code != want {
			t.Errorf("exit %d with %d problems and %d warnings", r.code, up.Problems, up.Warnings)
		}
		for _, c := range up.Checks {
			names[c.Name] = true
			if finding := c.Level == levelWarning || c.Level == levelProblem; finding && !slices.Contains(ofTheMachine, c.Name) {
				t.Errorf("finding: %+v", c)
			}
		}
	}
	look()
	p := start(t, append([]string{"serve", "--http-addr", "off"}, args...)...)
	p.ready()
	look()
	for _, want := range []string{
		"nats.connection", "nats.tls", "nats.max_payload", "nats.permissions", "nats.streams", "bridge.presence", "bridge.api",
		"redis.connection", "redis.tls", "redis.version", "redis.maxmemory-policy", "redis.memory", "redis.persistence",
		"redis.replicas", "redis.write", "redis.clock", "redis.data", "redis.acl", "disk.data_dir", "disk.sync", "disk.room", "disk.journal",
	} {
		if !names[want] {
			t.Errorf("no check %s", want)
		}
	}
	r := run(t, append([]string{"doctor"}, args...)...)
	if !strings.Contains(r.out, "one runs, with the prefix delay") || !strings.Contains(r.out, "in use by a running bridge with pid") || !strings.Contains(r.out, "8 shards, as configured") {
		t.Errorf("beside a running bridge: %s", r.out)
	}
}

func TestDoctorOfNothing(t *testing.T) {
	t.Parallel()
	r := run(t, "doctor", "--nats-url", "nats://127.0.0.1:1", "--redis-url", "redis://127.0.0.1:1")
	if r.code != 1 || !strings.Contains(r.err, "2 problems") || !strings.Contains(r.out, "problem  nats.connection") || !strings.Contains(r.out, "problem  redis.connection") {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
}

func limitedUser(denyPublish, denySubscribe string) testnats.Option {
	return testnats.Config(`authorization { users = [
		{ user: u, password: p, permissions: { publish: { deny: ["` + denyPublish + `"] }, subscribe: { deny: ["` + denySubscribe + `"] } } }
		{ user: root, password: p } ] }`)
}

// TestDoctorNamesMissingPermissions takes one away at a time.
func TestDoctorNamesMissingPermissions(t *testing.T) {
	srv := testnats.Start(t, limitedUser("nothing", "nothing"))
	for _, tt := range []struct {
		publish, subscribe string
		level, do          string
	}{
		{"nothing", "delay.in.>", levelProblem, `subscribe: {allow: ["delay.in.>"]}`},
		{"nothing", "delay.at.>", levelProblem, `subscribe: {allow: ["delay.at.>"]}`},
		{"nothing", "delay.to.>", levelProblem, `subscribe: {allow: ["delay.to.>"]}`},
		{"nothing", "delay.ack.one.*", levelProblem, `subscribe: {allow: ["delay.ack.one.*"]}`},
		{"nothing", "delay.hb.*", levelProblem, `subscribe: {allow: ["delay.hb.*"]}`},
		{"nothing", "delay.sys.>", levelProblem, `subscribe: {allow: ["delay.sys.>"]}`},
		{"nothing", "_INBOX.>", levelProblem, `subscribe: {allow: ["_INBOX.>"]}`},
		{"nothing", "delay.api.>", levelWarning, `subscribe: {allow: ["delay.api.>"]}`},
		{"nothing", "$SRV.>", levelWarning, `subscribe: {allow: ["$SRV.>"]}`},
		{"delay.job.>", "nothing", levelProblem, `publish: {allow: ["delay.job.>"]}`},
		{"delay.ping.>", "nothing", levelProblem, `publish: {allow: ["delay.ping.>"]}`},
		{"delay.owner.>", "nothing", levelProblem, `publish: {allow: ["delay.owner.>"]}`},
		{"delay.event.>", "nothing", levelProblem, `publish: {allow: ["delay.event.>"]}`},
		{"delay.sys.>", "nothing", levelProblem, `publish: {allow: ["delay.sys.>"]}`},
		{"_INBOX.>", "nothing", levelProblem, `publish: {allow: ["_INBOX.>"]}`},
		{"nothing", "nothing", levelOK, ""},
	} {
		srv.Reload(t, limitedUser(tt.publish, tt.subscribe))
		d := newDoctor(t, "nats.url", srv.URL(), "nats.user", "u", "nats.password", "p", "id", "one")
		d.permissionsOnly(t)
		d.want(t, "nats.permissions", tt.level, tt.do)
		if r := d.result(); tt.level != levelOK && r.Problems+r.Warnings != 1 {
			t.Errorf("without %s and %s: %+v", tt.publish, tt.subscribe, d.checks)
		}
	}
}

// TestDoctorAgreesWithTheGuide: the permissions of a bridge in docs/security.md are
// all that doctor asks for.
func TestDoctorAgreesWithTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(guide), "\nBRIDGE: {")
	set, _, ok2 := strings.Cut(rest, "\n}\n")
	if !ok || !ok2 {
		t.Fatal("docs/security.md has no permissions of a BRIDGE")
	}
	srv := testnats.Start(t, testnats.Config("authorization { users = [ { user: u, password: p, permissions: {"+set+"\n} } ] }"))
	d := newDoctor(t, "nats.url", srv.URL(), "nats.user", "u", "nats.password", "p", "id", "one", "targets.allow", "orders.>")
	d.permissionsOnly(t)
	d.want(t, "nats.permissions", levelOK, "")
	if r := d.result(); r.Problems+r.Warnings > 0 {
		t.Errorf("%+v", d.checks)
	}
}

func (d *doctor) permissionsOnly(t *testing.T) {
	t.Helper()
	heard := newRefusals()
	nc, err := d.cfg.nats.dial("test", nats.ErrorHandler(heard.hear))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	d.natsPermissions(nc, heard)
}

func TestDoctorOfTargets(t *testing.T) {
	srv := testnats.Start(t, limitedUser("billing.>", "nothing"))
	access := []string{"nats.url", srv.URL(), "nats.user", "u", "nats.password", "p"}
	d := newDoctor(t, append(access, "targets.allow", "orders.>,billing.*")...)
	d.permissionsOnly(t)
	d.want(t, "nats.targets", levelProblem, `publish: {allow: ["billing.*"]}`)
	if r := d.result(); r.Problems != 1 {
		t.Errorf("%+v", d.checks)
	}
	srv.Reload(t, limitedUser("doctor", "nothing"))
	d = newDoctor(t, access...)
	d.permissionsOnly(t)
	d.want(t, "nats.targets", levelInfo, "targets.allow")
}

// TestDoctorDisturbsNobody: what it tries is not delivered.
func TestDoctorDisturbsNobody(t *testing.T) {
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	all, err := nc.SubscribeSync(">")
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	d := newDoctor(t, "nats.url", srv.URL(), "id", "one")
	d.permissionsOnly(t)
	if err := nc.Publish("end", nil); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := all.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == "end" {
			return
		}
		t.Errorf("published to %s: %q", m.Subject, m.Data)
	}
}

func TestDoctorOfStreams(t *testing.T) {
	srv := testnats.Start(t, testnats.JetStream(t.TempDir()))
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		stream nats.StreamConfig
		level  string
		seen   string
	}{
		{nats.StreamConfig{Name: "EVENTS", Subjects: []string{"delay.event.>"}}, levelOK, ""},
		{nats.StreamConfig{Name: "ALL", Subjects: []string{"delay.>"}}, levelProblem, "ALL captures delay.in.>"},
		{nats.StreamConfig{Name: "ONE", Subjects: []string{"delay.to.orders.x"}}, levelProblem, "ONE captures delay.to.>"},
		{nats.StreamConfig{Name: "ACKS", Subjects: []string{"delay.ack.*.*"}}, levelProblem, "ACKS captures delay.ack.>"},
		{nats.StreamConfig{Name: "COPY", Subjects: []string{"delay.in.>"}, NoAck: true}, levelOK, ""},
	} {
		if _, err := js.AddStream(&tt.stream); err != nil {
			t.Fatal(err)
		}
		d := newDoctor(t, "nats.url", srv.URL())
		d.natsStreams(t.Context(), nc)
		d.want(t, "nats.streams", tt.level, tt.seen)
		if err := js.DeleteStream(tt.stream.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDoctorOfSmallPayload(t *testing.T) {
	srv := testnats.Start(t, testnats.MaxPayload(8<<10))
	d := newDoctor(t, "nats.url", srv.URL())
	d.lookAtNATS(t.Context())
	d.want(t, "nats.max_payload", levelWarning, "8192 bytes")
}

// TestDoctorOfRunningBridge has somebody else answer for the bridge.
func TestDoctorOfRunningBridge(t *testing.T) {
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	stats := api.StatsAnswer{
		Bridge: "two", Mode: "local", Jobs: job.Counts{Dead: 3}, Paused: []string{"billing.>"},
		Parked: []api.Parked{{Target: "orders.x", Reason: "no workers"}},
	}
	answer := func(subject string, body any) {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(data) }); err != nil {
			t.Fatal(err)
		}
	}
	answer("delay.api.stats", stats)
	answer("delay.api.bridges", api.BridgesAnswer{Bridges: []api.Bridge{{ID: "two", CircuitState: "OPEN"}, {ID: "three", CircuitState: "CLOSED"}}})
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	d := newDoctor(t, "nats.url", srv.URL(), "redis.url", "redis://127.0.0.1:1")
	d.lookAtNATS(t.Context())
	for name, seen := range map[string]string{"bridge.mode": "two is in mode local", "bridge.dead": "3 dead jobs", "bridge.paused": "billing.>", "bridge.parked": "orders.x (no workers)", "bridge.peers": "two OPEN"} {
		d.want(t, name, levelWarning, seen)
	}
	d = newDoctor(t, "nats.url", srv.URL(), "store", "local")
	d.lookAtNATS(t.Context())
	d.want(t, "bridge.mode", levelOK, "local")
}

func TestDoctorOfDisk(t *testing.T) {
	used, damaged, plain := t.TempDir(), fill(t, 20), t.TempDir()
	s, err := memdelay.Open(filepath.Join(used, localDir), memdelay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	damage(t, filepath.Join(damaged, localDir))
	file := filepath.Join(plain, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ dir, max, name, level, text string }{
		{plain, "1MiB", "disk.sync", levelOK, ""},
		{filepath.Join(plain, "a", "b"), "1MiB", "disk.data_dir", levelInfo, "does not exist yet"},
		{file, "1MiB", "disk.data_dir", levelProblem, "is not a directory"},
		{filepath.Join(file, "below"), "1MiB", "disk.data_dir", levelProblem, file},
		{"/proc/nowhere", "1MiB", "disk.data_dir", levelProblem, "/proc"},
		{"/dev/shm", "1MiB", "disk.kind", levelWarning, "tmpfs"},
		{plain, "900TiB", "disk.room", levelWarning, "local.max_bytes"},
		{used, "1MiB", "disk.journal", levelInfo, "in use by a running bridge with pid"},
		{damaged, "1MiB", "disk.local", levelProblem, "journal salvage"},
	} {
		d := newDoctor(t, "data_dir", tt.dir, "local.max_bytes", tt.max)
		d.lookAtDisk()
		if tt.name == "disk.sync" { // how long it takes is the machine's
			if d.found(tt.name, "for 4 KiB").Level == "" {
				t.Errorf("no %s: %+v", tt.name, d.checks)
			}
			continue
		}
		d.want(t, tt.name, tt.level, tt.text)
	}
	left, err := filepath.Glob(filepath.Join(plain, ".doctor*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	d := newDoctor(t, "store", "local", "data_dir", "")
	d.lookAtDisk()
	d.want(t, "disk.data_dir", levelWarning, "memory")
}
