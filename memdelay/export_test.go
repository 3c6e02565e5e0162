package memdelay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// verdictsOf says of which incarnations of id the store owes verdicts, in the
// order of Export.
func verdictsOf(s *memdelay.Store, id string) string {
	var b strings.Builder
	for _, x := range s.Export(1<<20, true, nil) {
		if x.ID == id && (x.State == job.Done || x.State == job.Cancelled) {
			fmt.Fprintf(&b, "%d %s; ", x.Incarnation, x.State)
		}
	}
	return b.String()
}

// incarnation returns a job of that incarnation, put to replace the one before.
func incarnation(id string, n uint64) job.Job {
	j := simple(id, 10)
	j.Incarnation, j.Replace = n, true
	return j
}

// thrice lets three incarnations of a job end, the first one adopted.
func thrice(t *testing.T, s *memdelay.Store) {
	t.Helper()
	adopt(t, s, there("a", job.Running, 20)) // incarnation 7
	must(s.Settle(ctx, 21, []job.Settlement{{Ref: job.Ref{ID: "a", Incarnation: 7, Attempt: 3, Nonce: 99}}}))
	mustPut(t, s, incarnation("a", 8))
	c := must(s.Claim(ctx, job.ClaimRequest{Now: 22, Until: 22, Max: 1}))
	must(s.Settle(ctx, 23, []job.Settlement{{Ref: c.Deliveries[0].Ref()}}))
	mustPut(t, s, incarnation("a", 9))
	must(s.Cancel(ctx, 24, job.ByIDs("a")))
}

// TestVerdictsByIncarnation: how one job of an id ended is not forgotten when the
// next one ends.
func TestVerdictsByIncarnation(t *testing.T) {
	eachStore(t, memdelay.Options{Verdicts: true}, func(t *testing.T, s *memdelay.Store) {
		thrice(t, s)
		if got := verdictsOf(s, "a"); got != "7 done; 8 done; 9 cancelled; " {
			t.Errorf("verdicts %q", got)
		}
		if u := s.Usage(); u.Verdicts != 3 || u.VerdictBytes < 3*100 {
			t.Errorf("usage %+v", u)
		}
		if f := s.Find([]string{"a"})[0]; f != (memdelay.Found{State: job.Cancelled, Incarnation: 9, Shared: true}) {
			t.Errorf("found %+v, want the latest verdict", f)
		}
		if r := must(s.Put(ctx, []job.Job{incarnation("a", 7)}))[0]; r.Err != nil || r.Duplicate || s.Usage().Jobs != 0 {
			t.Errorf("a job that has ended, put again: %+v, usage %+v", r, s.Usage())
		}
		mustPut(t, s, incarnation("a", 10))
		if f := s.Find([]string{"a"})[0]; f.State != job.Pending || f.Incarnation != 10 {
			t.Errorf("found %+v, want the live job", f)
		}
		list := s.Export(2, true, nil)
		if same := must(s.Owe(ctx, list)); len(same) != 2 {
			t.Errorf("%d of 2 verdicts may be given", len(same))
		}
		if changed := must(s.Forget(ctx, list[1:])); changed != 0 || verdictsOf(s, "a") != "7 done; 9 cancelled; " {
			t.Errorf("the second is forgotten: %d changed, left %q", changed, verdictsOf(s, "a"))
		}
		if err := s.Discard(ctx, []job.Ref{{ID: "a", Incarnation: 7}}); err != nil || verdictsOf(s, "a") != "9 cancelled; " {
			t.Errorf("the first is discarded: %v, left %q", err, verdictsOf(s, "a"))
		}
		adopt(t, s, there("a", job.Done, 30))
		if err := s.Discard(ctx, []job.Ref{{ID: "a"}}); err != nil || s.Usage().Verdicts+s.Usage().Jobs != 0 || s.Usage().VerdictBytes != 0 {
			t.Errorf("all are discarded: %v, usage %+v", err, s.Usage())
		}
	})
}

// TestVerdictsByIncarnationOnDisk: they are recovered from the log, from
// snapshots and by Salvage.
func TestVerdictsByIncarnationOnDisk(t *testing.T) {
	for name, snapshotBytes := range map[string]int64{"log": 0, "snapshot": 1} {
		t.Run(name, func(t *testing.T) {
			dir, salvaged, o := t.TempDir(), t.TempDir(), memdelay.Options{Verdicts: true, SnapshotBytes: snapshotBytes}
			s := must(memdelay.Open(dir, o))
			thrice(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if r := must(memdelay.Salvage(dir, salvaged)); r.Verdicts != 3 || r.Damaged() {
				t.Errorf("salvaged: %v", r)
			}
			for _, dir := range []string{dir, salvaged} {
				again := open(t, dir, o)
				if got := verdictsOf(again, "a"); got != "7 done; 8 done; 9 cancelled; " {
					t.Errorf("verdicts %q", got)
				}
				if i := must(again.Get(ctx, []string{"a"}))[0]; i.State != job.Cancelled || i.Incarnation != 9 {
					t.Errorf("remembered is %+v", i)
				}
			}
		})
	}
}

// TestAdoptedEndOfAnEarlierJob does not end a later one of the same id.
func TestAdoptedEndOfAnEarlierJob(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	mustPut(t, s, incarnation("a", 8))
	adopt(t, s, there("a", job.Done, 30))
	wantStates(t, s, "a pending 0; ", "a")
	if got := verdictsOf(s, "a"); got != "7 done; " {
		t.Errorf("verdicts %q", got)
	}
}

// urgentJobs puts jobs, does something to each, and returns the ids of those that
// are not any more what another store may have.
func urgentJobs(t *testing.T, s *memdelay.Store) (urgent []string) {
	t.Helper()
	suspects := func(ids ...string) {
		for _, id := range ids {
			if r := must(s.PutSuspect(ctx, []job.Job{simple(id, 10)}))[0]; r.Err != nil || r.Duplicate {
				t.Fatalf("Put of %q: %+v", id, r)
			}
		}
	}
	fresh := simple("fresh replacing", 10)
	fresh.Replace = true
	mustPut(t, s, fresh, simple("own, changed", 10), simple("own, given", 10), simple("own, given, changed", 10), simple("own, changed, given", 10))
	suspects("aside")
	must(s.Claim(ctx, job.ClaimRequest{Until: 10, Max: 9, Blocked: []string{"t"}}))
	mustPut(t, s, simple("own, running, given, retried", 10))
	suspects("claimed", "retried")
	claimed := must(s.Claim(ctx, job.ClaimRequest{Now: 10, Until: 10, Max: 9})).Deliveries
	retry := func(id string) {
		d := claimed[slices.IndexFunc(claimed, func(d job.Delivery) bool { return d.ID == id })]
		must(s.Settle(ctx, 11, []job.Settlement{{Ref: d.Ref(), Outcome: job.Retry, At: 20}}))
	}
	retry("retried")
	suspects("suspect", "rescheduled", "replaced")
	must(s.Put(ctx, []job.Job{incarnation("replaced", 1<<62)}))
	reschedule := func(ids ...string) {
		for _, id := range ids {
			must(s.Reschedule(ctx, []job.Reschedule{{ID: id, Due: 90}}))
		}
	}
	reschedule("own, changed", "own, changed, given", "rescheduled")
	given := slices.DeleteFunc(s.Export(99, false, nil), func(x memdelay.Exported) bool { return !strings.Contains(x.ID, "given") })
	must(s.Owe(ctx, given))
	reschedule("own, given, changed")
	retry("own, running, given, retried")
	adopt(t, s, there("adopted", job.Pending, 20))
	return []string{"adopted", "claimed", "fresh replacing", "own, given, changed", "own, running, given, retried", "replaced", "rescheduled", "retried"}
}

// TestUrgent: what another store may act on wrongly is exported before the rest,
// also after a restart, and counts against the limits unless it was adopted.
func TestUrgent(t *testing.T) {
	dir, o := t.TempDir(), memdelay.Options{Verdicts: true, MaxJobs: 12}
	s := open(t, dir, o)
	want := urgentJobs(t, s)
	check := func(s *memdelay.Store) {
		t.Helper()
		var got []string
		for _, x := range s.Export(99, true, nil) {
			got = append(got, x.ID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("urgent are %q, want %q", got, want)
		}
		all := s.Export(len(got)+1, false, nil)
		if last := all[len(got)]; slices.Contains(want, last.ID) || len(s.Export(99, false, nil)) != s.Usage().Jobs {
			t.Errorf("after %d urgent jobs came %q, of %d in all", len(got), last.ID, s.Usage().Jobs)
		}
		for _, x := range s.Export(99, false, nil) {
			if replace := x.ID == "fresh replacing" || x.ID == "replaced"; x.Replace != replace {
				t.Errorf("%q is to replace: %v", x.ID, x.Replace)
			}
			if shared := x.ID == "replaced" || x.ID == "adopted"; shared && !s.Find([]string{x.ID})[0].Shared {
				t.Errorf("%q may be there no more", x.ID)
			}
		}
		if u := s.Usage(); u.Adopted != 1 {
			t.Errorf("%d adopted, want 1", u.Adopted)
		}
		if r := must(s.Put(ctx, []job.Job{simple("too many", 1)}))[0]; !errors.Is(r.Err, job.ErrFull) {
			t.Errorf("Put beyond the limit: %+v", r)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, dir, o))
}

// TestExportSkips: what the caller does not want fills no batch.
func TestExportSkips(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	for i := range 4 {
		adopt(t, s, there(fmt.Sprint("ended", i), job.Done, job.Time(i)), there(fmt.Sprint("adopted", i), job.Pending, 1))
		mustPut(t, s, simple(fmt.Sprint("own", i), job.Time(i)))
	}
	skip := func(id string) bool { return !strings.HasSuffix(id, "3") }
	if got := exported(s.Export(3, false, skip)); got != "ended3 adopted3 own3" {
		t.Errorf("exported %q", got)
	}
	if got := exported(s.Export(3, true, skip)); got != "ended3 adopted3" {
		t.Errorf("states: %q", got)
	}
}

// TestBatchesOfLargeJobs: few are decoded at once, and all come in the end.
func TestBatchesOfLargeJobs(t *testing.T) {
	const n, most = 20, 16
	s := memdelay.New(memdelay.Options{Verdicts: true})
	for i := range n {
		large := there(fmt.Sprintf("p%02d", i), job.Pending, job.Time(i))
		large.Payload = make([]byte, 1<<20)
		adopt(t, s, large)
		large.ID, large.State, large.Nonce = fmt.Sprintf("r%02d", i), job.Running, 1
		adopt(t, s, large)
	}
	if list := s.Export(1024, false, nil); len(list) != most {
		t.Errorf("%d jobs of 1 MiB exported at once, want %d", len(list), most)
	}
	seen, batches := map[string]bool{}, 0
	for list := range s.All(1024) {
		if batches++; len(list) > most {
			t.Errorf("%d jobs of 1 MiB at once, want at most %d", len(list), most)
		}
		for i := range list {
			seen[list[i].ID] = true
		}
	}
	if len(seen) != 2*n || batches != (2*n+most-1)/most {
		t.Errorf("%d jobs in %d batches", len(seen), batches)
	}
	for name, take := range map[string]func() []job.Info{
		"due":     func() []job.Info { return s.TakeDue(n, 1024) },
		"expired": func() []job.Info { return s.TakeExpired(n, 1024) },
	} {
		var sizes []int
		for list := take(); len(list) > 0; list = take() {
			sizes = append(sizes, len(list))
		}
		if !slices.Equal(sizes, []int{most, n - most}) {
			t.Errorf("%s: taken in batches of %d", name, sizes)
		}
	}
}

// TestAll yields what ended first, in batches, and lets others in between.
func TestAll(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	for i := range 5 {
		mustPut(t, s, simple(fmt.Sprint("own", i), 1))
		adopt(t, s, there(fmt.Sprint("ended", i), job.Done, 1))
	}
	var states []job.State
	for list := range s.All(3) {
		if len(list) > 3 {
			t.Errorf("%d in a batch, want at most 3", len(list))
		}
		for i := range list {
			states = append(states, list[i].State)
			s.Find([]string{list[i].ID}) // blocks if it must not be called
		}
	}
	want := slices.Concat(slices.Repeat([]job.State{job.Done}, 5), slices.Repeat([]job.State{job.Pending}, 5))
	if !slices.Equal(states, want) {
		t.Errorf("states %q, want %q", states, want)
	}
	for range s.All(3) {
		break
	}
	s.Find(nil)
}

// TestTakeStopsInTime: what is not due yet costs nothing.
func TestTakeStopsInTime(t *testing.T) {
	s := memdelay.New(memdelay.Options{})
	for i := range job.Time(1000) {
		adopt(t, s, there(fmt.Sprint("p", i), job.Pending, 10+i), there(fmt.Sprint("r", i), job.Running, 10+i))
	}
	for name, take := range map[string]func(){
		"due": func() { s.TakeDue(9, 1000) }, "expired": func() { s.TakeExpired(9, 1000) },
	} {
		if n := testing.AllocsPerRun(10, take); n > 8 {
			t.Errorf("%s: %v allocations to take nothing", name, n)
		}
	}
	if got := s.TakeDue(12, 1000); len(got) != 3 || got[2].Next != 12 {
		t.Errorf("took %+v, want three", got)
	}
}

// TestPruneManyVerdicts: in slices, so that others get in, but all of them.
func TestPruneManyVerdicts(t *testing.T) {
	eachStore(t, memdelay.Options{Verdicts: true}, func(t *testing.T, s *memdelay.Store) {
		var infos []job.Info
		for i := range job.Time(3000) {
			infos = append(infos, there(fmt.Sprint(i), job.Done, 1000+i))
		}
		adopt(t, s, infos...)
		if n := s.PruneVerdicts(1000 + 2500); n != 2500 || s.Usage().Verdicts != 500 {
			t.Errorf("%d pruned, usage %+v", n, s.Usage())
		}
		if got := s.Export(1, true, nil)[0].ID; got != "2500" {
			t.Errorf("the first one left is %s", got)
		}
	})
}

// TestVerdictsCount against the limit of bytes, until they are forgotten.
func TestVerdictsCount(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true, MaxBytes: 20_000})
	var err error
	ended := 0
	for ; err == nil && ended < 1000; ended++ {
		id := fmt.Sprint(ended)
		err = must(s.Put(ctx, []job.Job{simple(id, 1)}))[0].Err
		must(s.Cancel(ctx, 1, job.ByIDs(id)))
	}
	if u := s.Usage(); !errors.Is(err, job.ErrFull) || u.VerdictBytes < 19_000 || u.VerdictBytes > 20_400 {
		t.Errorf("after %d jobs: %v, usage %+v", ended, err, u)
	}
	must(s.Forget(ctx, s.Export(99, true, nil)))
	if r := must(s.Put(ctx, []job.Job{simple("a", 1)}))[0]; r.Err != nil || s.Usage().OwnBytes != s.Usage().Bytes {
		t.Errorf("with room again: %+v, usage %+v", r, s.Usage())
	}
	adopt(t, s, there("b", job.Pending, 1))
	if u := s.Usage(); u.OwnBytes == 0 || u.OwnBytes >= u.Bytes {
		t.Errorf("with an adopted job: usage %+v", u)
	}
}

// TestMintedIDs name many shards: the store that the jobs move to has several.
func TestMintedIDs(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	for name, put := range map[string]func([]job.Job) ([]job.PutResult, error){
		"Put":        func(jobs []job.Job) ([]job.PutResult, error) { return s.Put(ctx, jobs) },
		"PutSuspect": func(jobs []job.Job) ([]job.PutResult, error) { return s.PutSuspect(ctx, jobs) },
	} {
		jobs, shards := dueJobs(64, 1), map[uint16]bool{}
		must(put(jobs))
		for i := range jobs {
			shard, ok := job.IDShard(jobs[i].ID)
			if !ok || !jobs[i].Generated {
				t.Errorf("%s: minted %q", name, jobs[i].ID)
			}
			shards[shard] = true
		}
		if len(shards) < 32 {
			t.Errorf("%s: 64 ids name %d shards", name, len(shards))
		}
	}
}
