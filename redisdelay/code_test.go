package redisdelay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// code is what a tag of the owner ends with.
func code(owner string) string { return string(newTags(1, owner)[tagLen-2:]) }

// namesakes are two bridges with the same code.
func namesakes() (string, string) { return namesakesBut("") }

// namesakesBut are two with another code than a bridge has.
func namesakesBut(than string) (string, string) {
	known := map[string]string{}
	for i := 0; ; i++ {
		name := fmt.Sprintf("bridge-%d", i)
		if other, ok := known[code(name)]; ok && code(name) != code(than) {
			return other, name
		}
		known[code(name)] = name
	}
}

// codes are the owners that have one, by code.
func codes(t testing.TB, c *redis.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	for field, owner := range c.HGetAll(context.Background(), "test:{0}:meta").Val() {
		if code, ok := strings.CutPrefix(field, "owner:"); ok {
			out[code] = owner
		}
	}
	return out
}

// sweepAgain lets codes be freed although that was done a moment ago.
func sweepAgain(t testing.TB, c *redis.Client) {
	t.Helper()
	if err := c.HDel(context.Background(), "test:{0}:meta", "swept").Err(); err != nil {
		t.Fatal(err)
	}
}

// TestNamesakes: of two bridges that would have the same code one gets it, when the
// other has no lease any more.
func TestNamesakes(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	first, second := namesakes()
	a := l.lease("a", first)
	for i := range 3 {
		b := l.lease(fmt.Sprintf("b%d", i), second)
		l.wantOwner(a, first)
		l.wantOwner(b, second)
		if got := codes(t, client); got[code(first)] != first {
			t.Errorf("codes %q, want that of %q kept while it has a lease", got, first)
		}
		sweepAgain(t, client)
	}
	l.settle(job.Settlement{Ref: a.Ref()})
	entries := client.HLen(context.Background(), "test:{0}:owner").Val()
	b := l.lease("b3", second)
	if got := codes(t, client); got[code(second)] != second {
		t.Errorf("codes %q, want that of %q to be free for %q", got, first, second)
	}
	if n := client.HLen(context.Background(), "test:{0}:owner").Val(); n != entries || n != 3 {
		t.Errorf("%d leases are in the owner hash, want the 3 from before", n)
	}
	l.wantOwner(b, second)
	l.wantOwner(l.lease("a2", first), first)
	l.wantOwner(b, second)
	checkShape(t, client)
}

// TestCodesAreBounded: bridges come and go under new names for months.
func TestCodesAreBounded(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	held := map[string]job.Delivery{}
	for i := range 200 {
		name := fmt.Sprintf("bridge-%x", i*7919)
		d := l.lease(fmt.Sprintf("job%d", i), name)
		if i%20 == 0 {
			held[name] = d
		} else {
			l.settle(job.Settlement{Ref: d.Ref()})
		}
		if i%50 == 0 {
			sweepAgain(t, client)
		}
	}
	if n := len(codes(t, client)); n > 64 {
		t.Errorf("%d codes for 200 bridges, want at most 64", n)
	}
	for name, d := range held {
		l.wantOwner(d, name)
	}
	checkShape(t, client)
}

// TestWorkersLeaveNothing: of a thousand workers nothing is left when their jobs
// are done.
func TestWorkersLeaveNothing(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	l := &life{t: t, s: open(t, server.URL(), oneByOne), t0: job.At(time.Now())}
	var jobs []job.Job
	var slots []job.Slot
	for i := range 1000 {
		jobs = append(jobs, l.job(fmt.Sprintf("job%d", i), "orders.new", 0))
		slots = append(slots, job.Slot{Owner: fmt.Sprintf("b/worker-%d", i), Free: 1})
	}
	l.put(jobs...)
	l.claim(0, "", "orders.new")
	before := metaFields(t, client)
	owners := map[string]bool{}
	for len(slots) > 0 {
		c, err := l.s.Claim(ctx, job.ClaimRequest{Now: l.t0, Until: l.t0, Max: 256, Owner: "b", Target: "orders.new", Slots: slots})
		l.must(err)
		var list []job.Settlement
		for _, d := range c.Deliveries {
			owners[d.Owner] = true
			slots = slices.DeleteFunc(slots, func(s job.Slot) bool { return s.Owner == d.Owner })
			list = append(list, job.Settlement{Ref: d.Ref(), Target: d.Target, Due: d.Due})
		}
		if len(list) == 0 {
			t.Fatalf("nothing claimed for %d workers", len(slots))
		}
		l.settle(list...)
	}
	if len(owners) != 1000 {
		t.Errorf("%d workers got a job, want 1000", len(owners))
	}
	all := dump(t, client)
	for key := range all {
		if strings.HasSuffix(key, ":owner") {
			t.Errorf("%s is left: %v", key, all[key])
		}
	}
	if after := metaFields(t, client); after > before+2 { // what claim and settle save
		t.Errorf("meta has %d fields, %d before", after, before)
	}
}

func metaFields(t testing.TB, c *redis.Client) int {
	t.Helper()
	return int(c.HLen(context.Background(), "test:{0}:meta").Val())
}

// TestLeasesOfEarlierReleases: the leases that an earlier release has made have
// only a code.
func TestLeasesOfEarlierReleases(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	ctx := context.Background()
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	l.put(l.job("a", "orders.new", 0), l.job("b", "orders.new", 0))
	var leases []job.Delivery
	for _, id := range []string{"a", "b"} {
		tag := append([]byte("random"), "\x12\x34"...)
		client.ZRem(ctx, "test:{0}:due", id)
		client.ZAdd(ctx, "test:{0}:inf", redis.Z{Score: float64(l.t0.Add(time.Hour)), Member: id + string(tag)})
		j, err := job.DecodeRecord(id, client.HGet(ctx, "test:{0}:job", id).Val())
		l.must(err)
		leases = append(leases, job.Delivery{Job: j, Attempt: 1, Nonce: binary.BigEndian.Uint64(tag) ^ mix(j.Incarnation, 1)})
	}
	client.HSet(ctx, "test:{0}:meta", "owner:\x12\x34", "old")
	for _, d := range leases {
		l.wantOwner(d, "old")
	}
	l.settle(job.Settlement{Ref: leases[0].Ref(), Outcome: job.Own, At: l.t0.Add(time.Hour), Owner: "old/w1"})
	l.wantOwner(leases[0], "old/w1")
	l.wantOwner(leases[1], "old")
	for _, d := range leases {
		res, err := l.s.Settle(ctx, l.t0, []job.Settlement{{Ref: d.Ref()}})
		if err != nil || res[0] != job.Settled {
			t.Errorf("completed: %v, %v", res, err)
		}
	}
	checkShape(t, client)
}

// wantMerged checks that the leases are here, with their owners.
func (l *life) wantMerged(items ...job.MergeItem) {
	l.t.Helper()
	for i := range items {
		l.wantOwner(job.Delivery{Job: items[i].Job, Attempt: items[i].Attempt, Nonce: items[i].Nonce}, items[i].Owner)
	}
}

// TestMergedOwners: leases come from another store with their owners, and do not
// change whose those are that are here.
func TestMergedOwners(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	l := &life{t: t, s: open(t, server.URL(), oneShard), t0: job.At(time.Now())}
	first, second := namesakes()
	here := l.lease("here", first)
	merged := func(owner string) job.MergeItem {
		it := l.item("merged for "+owner, job.Running, 2)
		it.Owner = owner
		it.Nonce = NewNonce(it.Incarnation, it.Attempt, owner)
		return it
	}
	// Neither of these has a lease yet, and only one can have the code.
	third, fourth := namesakesBut(first)
	items := []job.MergeItem{merged(third), merged(fourth)}
	l.merge(items...)
	l.wantMerged(items...)
	sweepAgain(t, client)
	for _, owner := range []string{second, first, first + "/w1", second + "/w2", "", "other"} {
		items = append(items, merged(owner))
	}
	// One that was claimed by a worker while it was in the other store.
	items[7].Owner = "other/w3"
	for range 2 {
		l.merge(items...)
		l.wantOwner(here, first)
		l.wantMerged(items...)
	}
	for code, owner := range codes(t, client) {
		if owner == "" || strings.Contains(owner, "/") {
			t.Errorf("code %q is that of %q, want bridges only", code, owner)
		}
	}
	for i := range items {
		l.settle(job.Settlement{Ref: items[i].Ref()})
	}
	l.wantOwner(here, first)
	checkShape(t, client)
}
