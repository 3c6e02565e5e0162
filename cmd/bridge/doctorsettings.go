package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/delaybridge/delaybridge/redisdelay"
)

// The settings of Redis that matter, by what INFO and CONFIG GET say.

// Below these a replica that was away for a moment has to copy everything again.
const (
	smallBacklog    = 16 << 20
	shortReplTime   = 30
	laggingReplica  = 16 << 20
	memoryWarning   = 80 // percent
	memoryProblem   = 95
	hostMemoryShare = 60 // a fork that saves may need as much again
)

func (d *doctor) assessRedis(f redisFacts) {
	if f.err == nil && f.info["redis_version"] == "" {
		f.err = errNoInfo
	}
	if f.err != nil {
		d.bad("redis.version", "not known: "+f.err.Error(), "a bridge refuses a Redis that does not say its version", "allow the user +info")
		return
	}
	d.redisVersion(&f)
	d.redisEviction(&f)
	d.redisMemory(&f)
	d.redisPersistence(&f)
	d.redisReplicas(&f)
}

func (d *doctor) redisVersion(f *redisFacts) {
	version := f.info["redis_version"]
	seen := "Redis " + version
	if f.info["server_name"] == "valkey" {
		seen = "Valkey " + f.info["valkey_version"]
	}
	major, _, _ := strings.Cut(version, ".")
	if n, _ := strconv.Atoi(major); n < redisdelay.MinMajor {
		d.bad("redis.version", seen, "its scripts lack what a bridge needs, so that it refuses to start", fmt.Sprintf("use Redis %d.0 or later, or Valkey", redisdelay.MinMajor))
	} else {
		d.ok("redis.version", seen)
	}
	if f.info["cluster_enabled"] == "1" {
		d.bad("redis.cluster", "on", "a bridge sends all its commands to the server of redis.url, which refuses those for other nodes", "use a Redis without cluster mode")
	}
}

func (d *doctor) redisEviction(f *redisFacts) {
	policy := f.settings["maxmemory-policy"]
	if policy == "" {
		policy = f.info["maxmemory_policy"]
	}
	const name, set = "redis.maxmemory-policy", "CONFIG SET maxmemory-policy noeviction, and in redis.conf"
	switch policy {
	case "noeviction":
		d.ok(name, policy)
	case "":
		d.warn(name, "not known", "any other policy than noeviction removes jobs when memory is short", "look at the settings of your provider: it must be noeviction")
	default:
		d.bad(name, policy, "Redis may remove jobs when memory is short; a bridge refuses to start", set)
	}
	if n := f.number("evicted_keys"); n > 0 {
		d.warn("redis.evicted", count(int(n), "key")+" since Redis started", "these may have been jobs", set)
	}
}

func (d *doctor) redisMemory(f *redisFacts) {
	const name = "redis.memory"
	used, most, host := f.number("used_memory"), f.number("maxmemory"), f.number("total_system_memory")
	percent := int64(0)
	if most > 0 {
		percent = used * 100 / most
	}
	seen := fmt.Sprintf("%s of %s (%d %%)", sizeOf(used), sizeOf(most), percent)
	const why = "beyond maxmemory jobs are refused by Redis and go to the bridges' disks"
	switch {
	case percent >= memoryProblem:
		d.bad(name, seen, why, "raise maxmemory, or remove what else is in this Redis")
	case percent >= memoryWarning:
		d.warn(name, seen, why, "raise maxmemory in time")
	case most > 0:
		d.ok(name, seen)
	case host > 0 && used*100/host >= hostMemoryShare:
		d.warn(name, fmt.Sprintf("%s of the machine's %s, no limit", sizeOf(used), sizeOf(host)), "a snapshot or a rewrite of the log may need as much again; then the kernel ends Redis",
			"give it a larger machine, and a maxmemory of half of it")
	default:
		d.info(name, sizeOf(used)+", no limit", "set maxmemory to about half of the machine's memory, so that Redis refuses jobs before the kernel ends it")
	}
}

func (d *doctor) redisPersistence(f *redisFacts) {
	const name = "redis.persistence"
	fsync, knownFsync := f.settings["appendfsync"]
	save, knownSave := f.settings["save"]
	switch {
	case f.info["aof_enabled"] != "1" && knownSave && save == "":
		d.bad(name, "none", "all jobs are gone when Redis stops, but those with Delay-Durability: local", "CONFIG SET appendonly yes, and in redis.conf")
	case f.info["aof_enabled"] != "1":
		d.warn(name, "snapshots only", "jobs since the last one are lost when Redis stops", "CONFIG SET appendonly yes, and in redis.conf")
	case fsync == "no":
		d.warn(name, "append-only file, appendfsync no", "how much a power failure takes is up to the operating system, usually 30 s", "CONFIG SET appendfsync everysec, and in redis.conf")
	case fsync == "everysec":
		d.ok(name, "append-only file, appendfsync everysec: a power failure may take the last second")
	case knownFsync:
		d.ok(name, "append-only file, appendfsync "+fsync)
	default:
		d.ok(name, "append-only file")
		d.info("redis.appendfsync", "not known", "look at the settings of your provider: everysec or always")
	}
	if f.settings["no-appendfsync-on-rewrite"] == "yes" {
		d.warn("redis.no-appendfsync-on-rewrite", "yes", "while Redis rewrites its file, a power failure takes more than the last second", "CONFIG SET no-appendfsync-on-rewrite no, and in redis.conf")
	}
	d.redisSaves(f)
}

// redisSaves tells whether Redis succeeds in writing to its disk.
func (d *doctor) redisSaves(f *redisFacts) {
	for field, what := range map[string]string{"aof_last_write_status": "the last write to the append-only file", "aof_last_bgrewrite_status": "the last rewrite of the append-only file", "rdb_last_bgsave_status": "the last snapshot"} {
		if v := f.info[field]; v != "" && v != "ok" {
			d.bad("redis.saves", what+" failed", "Redis may refuse jobs, or lose them when it stops", "see its log; usually its disk is full, or memory for a fork is short (vm.overcommit_memory = 1)")
		}
	}
	if f.info["aof_rewrite_in_progress"] == "1" || f.info["rdb_bgsave_in_progress"] == "1" {
		d.info("redis.saves", "a rewrite or snapshot is under way: the latencies here may be higher than usual", "")
	}
}

func (d *doctor) redisReplicas(f *redisFacts) {
	if role := f.info["role"]; role != "master" {
		d.bad("redis.role", role+" of "+f.info["master_host"], "a replica takes no jobs", "let redis.url name the master")
		return
	}
	replicas := int(f.number("connected_slaves"))
	need, known := f.setting("min-replicas-to-write")
	switch {
	case known && int(need) > replicas:
		d.bad("redis.replicas", fmt.Sprintf("%d, but min-replicas-to-write is %d", replicas, need), "Redis refuses jobs; they go to the bridges' disks", "start the missing replicas, or lower min-replicas-to-write")
	case replicas == 0:
		d.info("redis.replicas", "none", "with one, and min-replicas-to-write 1, jobs outlive the machine of Redis; Delay-Durability: local does it for single jobs")
		return
	case known && need == 0:
		d.warn("redis.replicas", fmt.Sprintf("%d, min-replicas-to-write 0", replicas), "cut off from its replicas, a master goes on taking jobs that a failover loses",
			"CONFIG SET min-replicas-to-write 1, and in redis.conf of all of them")
	case !known:
		d.info("redis.replicas", fmt.Sprintf("%d; min-replicas-to-write is not known", replicas), "look at the settings of your provider: it should be 1 or more")
	default:
		d.ok("redis.replicas", fmt.Sprintf("%d, min-replicas-to-write %d", replicas, need))
	}
	d.redisReplication(f, replicas)
}

// redisReplication looks at what keeps replicas near the master.
func (d *doctor) redisReplication(f *redisFacts, replicas int) {
	for i := range replicas {
		state, lag := replicaOf(f, i)
		switch {
		case state != "" && state != "online":
			d.warn("redis.replica", fmt.Sprintf("replica %d is %s", i, state), "until it is online a failover to it loses jobs", "wait; if it does not end, raise repl-timeout and repl-backlog-size")
		case lag > laggingReplica:
			d.warn("redis.replica", fmt.Sprintf("replica %d is %s behind", i, sizeOf(lag)), "a failover to it loses as much", "look at its network and CPU")
		}
	}
	d.atLeast(f, "repl-backlog-size", smallBacklog, sizeOf, "a replica that was away for a moment copies everything again, which costs a fork of the master", "CONFIG SET repl-backlog-size 64mb, and in redis.conf")
	d.atLeast(f, "repl-timeout", shortReplTime, func(n int64) string { return fmt.Sprintf("%d s", n) }, "a full copy that takes longer is broken off and begins anew, again and again", "CONFIG SET repl-timeout 60, and in redis.conf")
}

func (d *doctor) atLeast(f *redisFacts, setting string, least int64, show func(int64) string, why, do string) {
	n, known := f.setting(setting)
	switch {
	case !known:
		d.info("redis."+setting, "not known", "look at the settings of your provider: "+show(least)+" or more")
	case n < least:
		d.warn("redis."+setting, show(n), why, do)
	default:
		d.ok("redis."+setting, show(n))
	}
}

// replicaOf reads what INFO says of a replica: its state and how many bytes it is
// behind.
func replicaOf(f *redisFacts, i int) (state string, lag int64) {
	for field := range strings.SplitSeq(f.info[fmt.Sprintf("slave%d", i)], ",") {
		name, v, _ := strings.Cut(field, "=")
		switch name {
		case "state":
			state = v
		case "offset":
			n, _ := strconv.ParseInt(v, 10, 64)
			lag = f.number("master_repl_offset") - n
		}
	}
	return state, lag
}

// sizeOf is n bytes for people.
func sizeOf(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
