package redisdelay

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// TestMergedLease: a lease that was merged runs out, and the job goes on.
func TestMergedLease(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL()), t0: job.At(time.Now())}
	ctx := context.Background()
	it := l.item("a", job.Running, 3)
	it.Base = 1
	l.merge(it)
	ds, _, err := l.s.Expired(ctx, it.Next, 10)
	if err != nil || len(ds) != 1 || ds[0].Ref() != withShard(it.Ref(), ds[0].Shard) || ds[0].Owner != "other" || ds[0].Base != 1 || ds[0].Deadline != it.Next {
		t.Fatalf("Expired: %+v, %v, want the lease of %+v", ds, err, it)
	}
	l.settle(job.Settlement{Ref: it.Ref(), Outcome: job.Extend, At: it.Next.Add(time.Hour)})
	if ds, _, _ := l.s.Expired(ctx, it.Next, 10); len(ds) != 0 {
		t.Errorf("the lease was not renewed: %+v", ds)
	}
	l.settle(job.Settlement{Ref: it.Ref(), Outcome: job.Retry, At: l.t0})
	ds = l.claim(0, "")
	if len(ds) != 1 || ds[0].Attempt != 4 || ds[0].Base != 1 {
		t.Errorf("claimed %+v, want attempt 4", ds)
	}
	res, err := l.s.Settle(ctx, l.t0, []job.Settlement{{Ref: it.Ref()}})
	if err != nil || res[0] != job.Stale {
		t.Errorf("the old Ref is %v, %v, want stale", res, err)
	}
}

func withShard(r job.Ref, shard uint16) job.Ref {
	r.Shard = shard
	return r
}

// TestMergeGenerated completes jobs with generated ids in another store: a
// completion that is sent again is recognised, and a copy that is merged later
// knows that the job has ended.
func TestMergeGenerated(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL(), oneByOne), t0: job.At(time.Now())}
	var ended, copies []job.MergeItem
	for i := range 100 {
		it := l.item(job.NewID(uint16(i)), job.Done, 1)
		it.Generated = true
		ended = append(ended, it)
		it.State, it.Attempt, it.Owner, it.Nonce = job.Pending, 0, "", 0
		copies = append(copies, it)
	}
	if res := l.merge(ended...); !all(res, job.Merged) {
		t.Errorf("merged: %v", res)
	}
	if res := l.merge(copies...); !all(res, job.Kept) {
		t.Errorf("copies of what has ended: %v, want all kept", res)
	}
	for i := range ended {
		res, err := l.s.Settle(context.Background(), l.t0, []job.Settlement{{Ref: ended[i].Ref()}})
		if err != nil || res[0] != job.Repeated {
			t.Fatalf("a completion that is sent again: %v, %v", res, err)
		}
	}
	if infos := l.get(ended[7].ID); infos.State != job.Done || !infos.Generated || infos.Incarnation != ended[7].Incarnation {
		t.Errorf("Get: %+v", infos)
	}
}

func all[T comparable](list []T, want T) bool {
	for _, v := range list {
		if v != want {
			return false
		}
	}
	return true
}

// TestMergeMany merges more than one call holds, with ids that repeat and jobs
// of many bytes.
func TestMergeMany(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL(), oneByOne), t0: job.At(time.Now())}
	var items []job.MergeItem
	for i := range 1500 {
		it := l.item(fmt.Sprintf("job%04d", i), job.Pending, uint32(i%2))
		if i%100 == 0 {
			it.Payload = make([]byte, 300<<10)
		}
		items = append(items, it)
	}
	second := items[3]
	second.State, second.Attempt, second.Nonce = job.Done, 1, 1
	items = append(items, second)
	if res := l.merge(items...); !all(res[:3], job.Merged) || !all(res[4:1500], job.Merged) {
		t.Errorf("merged: %v", res)
	}
	if i := l.get(second.ID); i.State != job.Done {
		t.Errorf("the id that repeats is %+v, want done", i)
	}
	refs, _, err := l.s.readTaken(context.Background())
	if err != nil || len(refs) != 1500 {
		t.Errorf("noted as taken: %d jobs, %v, want 1500", len(refs), err)
	}
	if ds := l.claim(3*time.Hour, ""); len(ds) != 1499 {
		t.Errorf("%d jobs delivered, want 1499", len(ds))
	}
}

// TestMergeTakesOnce: what Redis has taken, and finished and forgotten before the
// other store knew, is not taken again, whether the reply was lost or the process
// ended. A Redis that has lost it takes it again.
func TestMergeTakesOnce(t *testing.T) {
	server := testredis.Start(t)
	client := raw(t, server)
	proxy := testproxy.Start(t, server.Addr())
	same := func(o *Options) { oneByOne(o); o.BridgeID = "merger" }
	l := &life{t: t, s: open(t, proxy.URL(), same), t0: job.At(time.Now())}
	items := []job.MergeItem{l.item("a", job.Pending, 0), l.item("b", job.Dead, 1), l.item("c", job.Running, 1)}
	finish := func() {
		_, err := l.s.Cancel(context.Background(), l.t0, job.ByIDs("a", "b"))
		l.must(err)
		l.settle(job.Settlement{Ref: items[2].Ref()})
		l.t0 = l.t0.Add(time.Hour) // past the dedup window
	}

	proxy.DropReplies(1_000_000, func(args []string) bool { return len(args) > 1 && args[1] == mergeScript.sha })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := l.s.Merge(ctx, l.t0, items); err == nil {
		t.Fatal("Merge without a reply succeeded")
	}
	proxy.DropReplies(0, nil)
	finish()
	if res := l.merge(items...); !all(res, job.Kept) {
		t.Errorf("merged again after a lost reply: %v, want kept", res)
	}

	items[0].Incarnation, items[1].Incarnation = job.NextIncarnation(), job.NextIncarnation()
	items[2] = l.item("c", job.Running, 1)
	if res := l.merge(items...); !all(res, job.Merged) {
		t.Errorf("merged: %v", res)
	}
	finish()
	l.s = open(t, proxy.URL(), same)
	if res := l.merge(items...); !all(res, job.Kept) {
		t.Errorf("merged again after a restart: %v, want kept", res)
	}
	l.s = open(t, proxy.URL(), same)
	l.merge() // knows what was taken before
	for _, others := range []string{"", "x", "y"} {
		flush(t, client)
		if others != "" {
			for i := range 8 { // on both shards
				l.merge(l.item(fmt.Sprint(others, i), job.Pending, 0))
			}
		}
		if res := l.merge(items...); !all(res, job.Merged) {
			t.Errorf("merged into a Redis that came back empty, after %q: %v", others, res)
		}
		l.s = open(t, proxy.URL(), same)
		l.merge()
	}
}

// TestMergeIntoOlderData: what Redis had taken and then lost is taken again.
func TestMergeIntoOlderData(t *testing.T) {
	server := testredis.Start(t, synced...)
	same := func(o *Options) { oneByOne(o); o.BridgeID = "merger" }
	l := &life{t: t, s: open(t, server.URL(), same), t0: job.At(time.Now())}
	l.merge(l.item("x", job.Pending, 0), l.item("y", job.Pending, 0))
	l.must(raw(t, server).ConfigSet(context.Background(), "appendonly", "no").Err())
	items := []job.MergeItem{l.item("a", job.Pending, 0), l.item("b", job.Dead, 1), l.item("c", job.Running, 1)}
	l.merge(items...)
	l.s = open(t, server.URL(), same)
	l.merge() // knows what was taken before
	server.Restart()
	if res := l.merge(items...); !all(res, job.Merged) {
		t.Errorf("merged into a Redis that came back older: %v", res)
	}
}

// TestMergeAtMaxMemory: what has ended is merged, what lives is refused.
func TestMergeAtMaxMemory(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL()), t0: job.At(time.Now())}
	j := l.job("a", "orders.new", 0)
	j.Incarnation = 1
	l.put(j)
	raw(t, server).ConfigSet(context.Background(), "maxmemory", "1mb")
	ended := l.item("a", job.Done, 1)
	ended.Incarnation = 1
	if err := call250(func(ctx context.Context) error {
		_, err := l.s.Merge(ctx, l.t0, []job.MergeItem{ended})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if i := l.get("a"); i.State != job.Done {
		t.Errorf("merged at maxmemory: %+v, want done", i)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := l.s.Merge(ctx, l.t0, []job.MergeItem{l.item("b", job.Pending, 0)}); !Refused(err) {
		t.Errorf("a living job at maxmemory: %v, want OOM", err)
	}
}

func TestMergeRefusesDamage(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL()), t0: job.At(time.Now())}
	for name, change := range map[string]func(it *job.MergeItem){
		"no id":      func(it *job.MergeItem) { it.ID = "" },
		"no target":  func(it *job.MergeItem) { it.Target = "" },
		"no state":   func(it *job.MergeItem) { it.State = "" },
		"no nonce":   func(it *job.MergeItem) { it.State = job.Running },
		"no attempt": func(it *job.MergeItem) { it.State, it.Nonce, it.Attempt = job.Running, 1, 0 },
	} {
		it := l.item("a", job.Pending, 1)
		change(&it)
		if _, err := l.s.Merge(context.Background(), l.t0, []job.MergeItem{l.item("b", job.Pending, 0), it}); err == nil {
			t.Errorf("%s: merged", name)
		}
	}
	if i := l.get("b"); i.State != "" {
		t.Errorf("the other item was merged: %+v", i)
	}
}
