package redisdelay

import (
	"slices"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

func TestKeys(t *testing.T) {
	want := []string{
		"delay:{7}:meta", "delay:{7}:due", "delay:{7}:job", "delay:{7}:inf", "delay:{7}:own", "delay:{7}:waits",
		"delay:{7}:dead", "delay:{7}:done:0", "delay:{7}:done:1", "delay:{7}:fin:0", "delay:{7}:fin:1", "delay:{7}:owner",
	}
	keys := shardKeys("delay", 7)
	if !slices.Equal(keys, want) {
		t.Errorf("shardKeys: %q, want %q", keys, want)
	}
	for i, name := range map[int]string{metaKey: "meta", dueKey: "due", jobKey: "job", infKey: "inf", ownKey: "own", waitsKey: "waits", deadKey: "dead"} {
		if keys[i] != "delay:{7}:"+name {
			t.Errorf("key %d is %q, want that of %s", i, keys[i], name)
		}
	}
	if got, want := waitKey("p", 4095, "orders.new"), "p:{4095}:wait:orders.new"; got != want {
		t.Errorf("waitKey: %q, want %q", got, want)
	}
	if got, want := formatKey("p"), "p:format"; got != want {
		t.Errorf("formatKey: %q, want %q", got, want)
	}
}

// TestShardOf fixes where ids are kept: data that was written must be found.
func TestShardOf(t *testing.T) {
	cases := []struct {
		id     string
		shards int
		want   int
	}{
		{"", 8, 5}, {"a", 8, 4}, {"a", 4096, 2348}, {"foobar", 8, 0}, {"foobar", 64, 40},
		{"order-4711", 8, 5}, {"order-4711", 4096, 29}, {"\x00\xff", 64, 32},
		{"00abcdefghiv", 8, 0}, {"07abcdefghiy", 8, 7}, // the form of generated ids
		{"10abcdefghio", 64, 0}, {"--abcdefghiS", 4096, 4095}, {"--abcdefghiS", 8, 7},
	}
	for _, c := range cases {
		if got := shardOf(c.id, c.shards); got != c.want {
			t.Errorf("shardOf(%q, %d) = %d, want %d", c.id, c.shards, got, c.want)
		}
	}
	for shard := range uint16(64) {
		if got := shardOf(job.NewID(shard), 64); got != int(shard) {
			t.Errorf("an id minted for shard %d is kept in %d", shard, got)
		}
	}
}
