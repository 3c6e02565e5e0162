package redisdelay

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// checkShape checks what the package comment says of the layout: every job that
// lives has a record and is in exactly one sorted set, and nothing else is there.
func checkShape(t testing.TB, c *redis.Client) {
	t.Helper()
	all := dump(t, c)
	for key, v := range all {
		records, ok := v.(map[string]string)
		if !ok || !strings.HasSuffix(key, ":job") {
			continue
		}
		prefix := strings.TrimSuffix(key, "job")
		places := placesOf(all, prefix)
		for id := range records {
			if len(places[id]) != 1 {
				t.Errorf("job %q of %s is in %q, want one place", id, prefix, places[id])
			}
			for _, hash := range []string{"done:0", "done:1"} {
				if h, _ := all[prefix+hash].(map[string]string); h[id] != "" {
					t.Errorf("job %q of %s lives and is in %s", id, prefix, hash)
				}
			}
		}
		for id, at := range places {
			if _, ok := records[id]; !ok {
				t.Errorf("job %q of %s is in %q and has no record", id, prefix, at)
			}
		}
		runs, _ := all[prefix+"own"].(map[string]string)
		for id := range runs {
			if _, ok := records[id]; !ok {
				t.Errorf("job %q of %s has a run state and no record", id, prefix)
			}
		}
	}
	checkOwners(t, all)
	checkWaits(t, all)
}

// checkOwners checks that only leases that are held have an owner.
func checkOwners(t testing.TB, all map[string]any) {
	t.Helper()
	for key, v := range all {
		prefix, ok := strings.CutSuffix(key, ":owner")
		owners, isHash := v.(map[string]string)
		if !ok || !isHash {
			continue
		}
		held, _ := all[prefix+":inf"].([]redis.Z)
		for id, entry := range owners {
			if !slices.ContainsFunc(held, func(z redis.Z) bool { return z.Member == id+entry[:tagLen] }) {
				t.Errorf("%s has the entry %q of %q, whose lease is not held", key, entry, id)
			}
		}
	}
}

// placesOf lists, per id, the sorted sets of a shard that it is in.
func placesOf(all map[string]any, prefix string) map[string][]string {
	places := map[string][]string{}
	for key, v := range all {
		set, ok := v.([]redis.Z)
		if !ok || !strings.HasPrefix(key, prefix) {
			continue
		}
		name := strings.TrimPrefix(key, prefix)
		for _, z := range set {
			id, _ := z.Member.(string)
			if name == "inf" {
				id = leaseID(id)
			}
			places[id] = append(places[id], name)
		}
	}
	return places
}

// checkWaits checks that waits names exactly the wait keys that exist.
func checkWaits(t testing.TB, all map[string]any) {
	t.Helper()
	for key := range all {
		prefix, target, ok := strings.Cut(key, ":wait:")
		if !ok {
			continue
		}
		if targets, _ := all[prefix+":waits"].([]string); !slices.Contains(targets, target) {
			t.Errorf("%s is not in waits: %q", key, targets)
		}
	}
	for key, v := range all {
		prefix, ok := strings.CutSuffix(key, ":waits")
		if !ok {
			continue
		}
		for _, target := range v.([]string) {
			if all[prefix+":wait:"+target] == nil {
				t.Errorf("%s names %q, which has no wait key", key, target)
			}
		}
	}
}
