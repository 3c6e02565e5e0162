package redisdelay

import (
	"strconv"
	"strings"

	"github.com/delaybridge/delaybridge/job"
)

// The keys that every script gets first, in this order; the wait keys that a
// call needs follow. The scripts' prologue names them.
var shardKeyNames = [...]string{"meta", "due", "job", "inf", "own", "waits", "dead", "done:0", "done:1", "fin:0", "fin:1", "owner"}

// Positions in shardKeyNames.
const (
	metaKey = iota
	dueKey
	jobKey
	infKey
	ownKey
	waitsKey
	deadKey
)

// formatKey holds the format of the data, outside the shards.
func formatKey(prefix string) string { return prefix + ":format" }

// canaryKey is what a bridge writes to see whether Redis takes writes.
func canaryKey(prefix, bridgeID string) string { return prefix + ":canary:" + bridgeID }

// shardPrefix is what all keys of a shard begin with. The braces make a hash
// tag: a cluster keeps all keys of a shard in one slot.
func shardPrefix(prefix string, shard int) string {
	return prefix + ":{" + strconv.Itoa(shard) + "}:"
}

// shardKeys are the keys of a shard in the order of shardKeyNames.
func shardKeys(prefix string, shard int) []string {
	keys := make([]string, len(shardKeyNames))
	for i, name := range shardKeyNames {
		keys[i] = shardPrefix(prefix, shard) + name
	}
	return keys
}

// waitKey holds the jobs of a shard that are set aside for target.
func waitKey(prefix string, shard int, target string) string {
	return shardPrefix(prefix, shard) + "wait:" + target
}

// shardOf is where the job id is kept: the shard that a generated id names, or
// else the 32-bit FNV-1a hash of the id. It is part of the stored format.
func shardOf(id string, shards int) int {
	if s, ok := job.IDShard(id); ok {
		return int(s) % shards
	}
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return int(h % uint32(shards))
}

// What people read of workers, see docs/workers.md. Each key is in a slot of its
// own.
func workerTasksKey(prefix, worker string) string { return prefix + ":worker:{" + worker + "}:task" }
func workerBeatKey(prefix, worker string) string  { return prefix + ":worker:{" + worker + "}:hb" }
func taskWorkerKey(prefix, id string) string      { return prefix + ":task:{" + id + "}:workerId" }

func checkPrefix(prefix string) error {
	if prefix == "" || strings.ContainsAny(prefix, "{} \t\r\n") {
		return permanent("redisdelay: prefix %q: use a name without braces and spaces", prefix)
	}
	return nil
}
