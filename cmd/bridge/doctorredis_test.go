package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/redisdelay"
)

// wellSet is a Redis with a replica and nothing to say about.
func wellSet() redisFacts {
	return redisFacts{
		info: map[string]string{
			"redis_version": "7.2.1", "role": "master", "aof_enabled": "1", "maxmemory_policy": "noeviction", "used_memory": "50", "maxmemory": "100",
			"connected_slaves": "1", "slave0": "ip=10.0.0.1,port=6379,state=online,offset=1000,lag=0", "master_repl_offset": "1000",
			"aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok",
		},
		settings: map[string]string{
			"appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction", "no-appendfsync-on-rewrite": "no",
			"min-replicas-to-write": "1", "repl-backlog-size": "67108864", "repl-timeout": "60",
		},
	}
}

func TestDoctorOfRedisSettings(t *testing.T) {
	well := newDoctor(t)
	well.assessRedis(wellSet())
	for _, c := range well.checks {
		if c.Level != levelOK {
			t.Errorf("well set: %+v", c)
		}
	}
	for _, tt := range []struct {
		field, v          string // of info, or with a minus of settings; "absent": refused
		name, level, text string
	}{
		{"redis_version", "6.2.9", "redis.version", levelProblem, "6.2.9"},
		{"cluster_enabled", "1", "redis.cluster", levelProblem, "on"},
		{"evicted_keys", "7", "redis.evicted", levelWarning, "7 keys"},
		{"used_memory", "85", "redis.memory", levelWarning, "85 %"},
		{"used_memory", "96", "redis.memory", levelProblem, "96 %"},
		{"maxmemory", "0", "redis.memory", levelInfo, "no limit"},
		{"aof_enabled", "0", "redis.persistence", levelProblem, "CONFIG SET appendonly yes"},
		{"aof_last_write_status", "err", "redis.saves", levelProblem, "last write"},
		{"rdb_last_bgsave_status", "err", "redis.saves", levelProblem, "last snapshot"},
		{"aof_rewrite_in_progress", "1", "redis.saves", levelInfo, "under way"},
		{"role", "slave", "redis.role", levelProblem, "name the master"},
		{"connected_slaves", "0", "redis.replicas", levelProblem, "min-replicas-to-write is 1"},
		{"slave0", "ip=10.0.0.1,port=6379,state=wait_bgsave,offset=0", "redis.replica", levelWarning, "wait_bgsave"},
		{"master_repl_offset", "99999999999", "redis.replica", levelWarning, "behind"},
		{"-maxmemory-policy", "volatile-lru", "redis.maxmemory-policy", levelProblem, "CONFIG SET maxmemory-policy noeviction"},
		{"-appendfsync", "no", "redis.persistence", levelWarning, "appendfsync no"},
		{"-appendfsync", "absent", "redis.appendfsync", levelInfo, "not known"},
		{"-no-appendfsync-on-rewrite", "yes", "redis.no-appendfsync-on-rewrite", levelWarning, "yes"},
		{"-min-replicas-to-write", "0", "redis.replicas", levelWarning, "CONFIG SET min-replicas-to-write 1"},
		{"-min-replicas-to-write", "absent", "redis.replicas", levelInfo, "not known"},
		{"-repl-backlog-size", "1048576", "redis.repl-backlog-size", levelWarning, "1024 KiB"},
		{"-repl-backlog-size", "absent", "redis.repl-backlog-size", levelInfo, "16 MiB or more"},
		{"-repl-timeout", "10", "redis.repl-timeout", levelWarning, "10 s"},
	} {
		f := wellSet()
		in, field := f.info, tt.field
		if rest, ok := strings.CutPrefix(field, "-"); ok {
			in, field = f.settings, rest
		}
		in[field] = tt.v
		if tt.v == "absent" {
			delete(in, field)
		}
		d := newDoctor(t)
		d.assessRedis(f)
		d.want(t, tt.name, tt.level, tt.text)
		findings := d.result().Problems + d.result().Warnings
		if want := map[string]int{levelProblem: 1, levelWarning: 1}[tt.level]; findings != want {
			t.Errorf("%s = %s: %d findings, want %d: %+v", tt.field, tt.v, findings, want, d.checks)
		}
	}
}

func TestDoctorOfManagedRedis(t *testing.T) {
	f := wellSet()
	f.settings = nil
	delete(f.info, "maxmemory_policy")
	d := newDoctor(t)
	d.assessRedis(f)
	d.want(t, "redis.maxmemory-policy", levelWarning, "not known")
	d = newDoctor(t)
	d.assessRedis(redisFacts{err: errors.New("NOPERM")})
	d.want(t, "redis.version", levelProblem, "+info")
	d = newDoctor(t)
	f = wellSet()
	f.info["server_name"], f.info["valkey_version"] = "valkey", "8.1.0"
	d.assessRedis(f)
	d.want(t, "redis.version", levelOK, "Valkey 8.1.0")
}

// TestDoctorOfRealRedis sets one real server wrongly, in several ways.
func TestDoctorOfRealRedis(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	look := func(kv ...string) *doctor {
		d := newDoctor(t, append(kv, "redis.url", server.URL())...)
		d.lookAtRedis(t.Context())
		return d
	}
	for _, tt := range []struct{ setting, v, name, level, text string }{
		{"maxmemory-policy", "allkeys-lru", "redis.maxmemory-policy", levelProblem, "allkeys-lru"},
		{"appendonly", "no", "redis.persistence", levelProblem, "none"},
		{"min-replicas-to-write", "2", "redis.replicas", levelProblem, "0, but min-replicas-to-write is 2"},
		{"min-replicas-to-write", "2", "redis.write", levelProblem, "min-replicas-to-write"},
		{"maxmemory", "1mb", "redis.write", levelProblem, "raise maxmemory"},
	} {
		was, err := c.ConfigGet(t.Context(), tt.setting).Result()
		if err == nil {
			err = c.ConfigSet(t.Context(), tt.setting, tt.v).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		look().want(t, tt.name, tt.level, tt.text)
		if err := c.ConfigSet(t.Context(), tt.setting, was[tt.setting]).Err(); err != nil {
			t.Fatal(err)
		}
	}

	s, err := redisdelay.Open(t.Context(), redisdelay.Options{URL: server.URL(), BridgeID: "one", Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	look().want(t, "redis.data", levelProblem, "set redis.shards to 4")
	look("redis.shards", "4").want(t, "redis.data", levelOK, "4 shards")

	master := strings.Split(testredis.Start(t).Addr(), ":")
	if err := c.ReplicaOf(t.Context(), master[0], master[1]).Err(); err != nil {
		t.Fatal(err)
	}
	look().want(t, "redis.role", levelProblem, "slave of 127.0.0.1")
	look().want(t, "redis.write", levelProblem, "name the master")
}

// TestDoctorNamesRefusedCommands gives a user all but one command of a bridge.
func TestDoctorNamesRefusedCommands(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	setUser := func(rules ...any) {
		t.Helper()
		args := append([]any{"acl", "setuser", "bob", "reset", "on", ">pw"}, rules...)
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	look := func() *doctor {
		d := newDoctor(t, "redis.url", server.URL(), "redis.user", "bob", "redis.password", "pw")
		d.lookAtRedis(t.Context())
		return d
	}
	all := []any{"~delay:*"}
	for _, name := range redisdelay.Commands() {
		all = append(all, "+"+name)
	}
	setUser(all...)
	look().want(t, "redis.acl", levelOK, "commands of a bridge are allowed")
	for _, without := range redisdelay.Commands() {
		if strings.Contains("ping evalsha script|load info time", without) {
			continue // it does not get that far, see below
		}
		setUser(append(all, "-"+without)...)
		look().want(t, "redis.acl", levelProblem, "~delay:* +"+without)
	}
	for without, name := range map[string]string{"ping": "redis.connection", "info": "redis.version", "evalsha": "redis.acl", "script|load": "redis.acl", "time": "redis.acl", "set": "redis.write"} {
		setUser(append(all, "-"+without)...)
		look().want(t, name, levelProblem, "+"+without)
	}
	setUser(append(all, "resetkeys", "~other:*")...)
	look().want(t, "redis.acl", levelProblem, "~delay:*")
}

// TestDoctorOfSlowRedis has some time left for the other checks.
func TestDoctorOfSlowRedis(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	proxy.Disturb(testproxy.Disturbance{Delay: hangingRedis})
	d := newDoctor(t, "redis.url", proxy.URL())
	o, err := redisdelay.ClientOptions(d.cfg.redisURL, redisTimeout)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	began := time.Now()
	if !d.redisConnection(t.Context(), c, o) {
		t.Fatalf("%+v", d.checks)
	}
	d.want(t, "redis.connection", levelWarning, "SLOWLOG GET")
	if took := time.Since(began); took > pings*hangingRedis/2 {
		t.Errorf("it took %v", took)
	}
}
