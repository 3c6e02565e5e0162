package memdelay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// there is a job as another store has it.
func there(id string, state job.State, next job.Time) job.Info {
	i := job.Info{Job: simple(id, 10), State: state, Next: next, Attempt: 3, Base: 1}
	i.Incarnation, i.Generated = 7, true
	switch state {
	case job.Running:
		i.Owner, i.Nonce = "them", 99
	case job.Dead:
		i.Reason = "broken"
	}
	return i
}

// eachStore runs a test on a store in memory and on a durable one.
func eachStore(t *testing.T, o memdelay.Options, test func(t *testing.T, s *memdelay.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, memdelay.New(o)) })
	t.Run("durable", func(t *testing.T) { test(t, open(t, t.TempDir(), o)) })
}

func adopt(t testing.TB, s *memdelay.Store, infos ...job.Info) {
	t.Helper()
	if err := s.Adopt(ctx, infos); err != nil {
		t.Fatal(err)
	}
}

func TestAdoptKeepsTheState(t *testing.T) {
	eachStore(t, memdelay.Options{Verdicts: true}, func(t *testing.T, s *memdelay.Store) {
		for _, state := range []job.State{job.Pending, job.Running, job.Dead, job.Done, job.Cancelled, job.Running} {
			want := there("a", state, 20)
			adopt(t, s, want)
			got := must(s.Get(ctx, []string{"a"}))[0]
			if got.State != state || got.Attempt != 3 || got.Next != 20 || got.Incarnation != 7 || !got.Generated {
				t.Errorf("adopted as %s: %+v", state, got)
			}
			if live := state != job.Done && state != job.Cancelled; live &&
				(got.Base != 1 || got.Nonce != want.Nonce || got.Owner != want.Owner || got.Reason != want.Reason || string(got.Payload) != "payload of a") {
				t.Errorf("adopted as %s: %+v, want %+v", state, got, want)
			}
			if f := s.Find([]string{"a", "b"}); f[0] != (memdelay.Found{State: state, Incarnation: 7, Attempt: 3, Shared: true}) || f[1].State != "" {
				t.Errorf("adopted as %s: found %+v", state, f)
			}
		}
		ref := job.Ref{ID: "a", Incarnation: 7, Attempt: 3, Nonce: 99}
		if res := must(s.Settle(ctx, 30, []job.Settlement{{Ref: ref}})); res[0] != job.Settled {
			t.Errorf("the other store's delivery is not known here: %v", res)
		}
	})
}

// TestAdoptReusesTheRecord: the payload need not be given again.
func TestAdoptReusesTheRecord(t *testing.T) {
	s := memdelay.New(memdelay.Options{})
	adopt(t, s, there("a", job.Pending, 20))
	again := there("a", job.Running, 30)
	again.Payload = nil
	adopt(t, s, again)
	if i := must(s.Get(ctx, []string{"a"}))[0]; i.State != job.Running || string(i.Payload) != "payload of a" {
		t.Errorf("adopted again: %+v", i)
	}
	again.Due++
	adopt(t, s, again)
	if i := must(s.Get(ctx, []string{"a"}))[0]; i.Due != 11 || len(i.Payload) != 0 {
		t.Errorf("adopted with another due time: %+v", i)
	}
}

func TestAdoptRefuses(t *testing.T) {
	s := memdelay.New(memdelay.Options{})
	for name, change := range map[string]func(*job.Info){
		"state":       func(i *job.Info) { i.State = "" },
		"incarnation": func(i *job.Info) { i.Incarnation = 0 },
		"id":          func(i *job.Info) { i.ID = "" },
	} {
		i := there("b", job.Pending, 1)
		change(&i)
		if err := s.Adopt(ctx, []job.Info{there("a", job.Pending, 1), i}); err == nil {
			t.Errorf("a job without %s was adopted", name)
		}
	}
	if u := s.Usage(); u.Jobs != 0 {
		t.Errorf("%d jobs of refused calls", u.Jobs)
	}
}

// TestVerdicts: how jobs end that another store may hold is kept, until it is
// forgotten; that of the others is not.
func TestVerdicts(t *testing.T) {
	eachStore(t, memdelay.Options{Verdicts: true}, func(t *testing.T, s *memdelay.Store) {
		adopt(t, s, there("adopted", job.Running, 20))
		generated := simple("generated", 10)
		generated.Generated = true
		suspect := generated
		suspect.ID = "suspect"
		mustPut(t, s, simple("chosen", 10), generated)
		if res := must(s.PutSuspect(ctx, []job.Job{suspect})); res[0].Err != nil {
			t.Fatal(res)
		}
		must(s.Settle(ctx, 25, []job.Settlement{{Ref: job.Ref{ID: "adopted", Incarnation: 7, Attempt: 3, Nonce: 99}}}))
		must(s.Cancel(ctx, 26, job.ByIDs("chosen", "generated", "suspect")))
		all := []string{"adopted", "chosen", "generated", "suspect"}
		var found []string
		for _, f := range s.Find(all) {
			found = append(found, string(f.State))
		}
		if want := []string{"done", "cancelled", "", "cancelled"}; !slices.Equal(found, want) {
			t.Errorf("verdicts %q, want %q", found, want)
		}
		list := s.Export(10, true, nil)
		for _, x := range list {
			if x.ID == "adopted" && (x.State != job.Done || x.Next != 25 || x.Attempt != 3 || x.Nonce != 99 || x.Target != "t" || x.Due != 10) {
				t.Errorf("the verdict is %+v", x)
			}
		}
		if changed, err := s.Forget(ctx, list); len(list) != 3 || changed != 0 || err != nil {
			t.Errorf("forgot %d verdicts: %d changed, %v", len(list), changed, err)
		}
		if u := s.Usage(); u.Verdicts != 0 || u.Jobs != 0 {
			t.Errorf("usage %+v, want nothing", u)
		}
		if r := must(s.Put(ctx, []job.Job{simple("chosen", 10)})); r[0].Err != nil || r[0].Duplicate {
			t.Errorf("a cancelled id is not free: %+v", r)
		}
	})
}

func TestPruneVerdicts(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	adopt(t, s, there("a", job.Done, 20), there("b", job.Done, 30))
	if n := s.PruneVerdicts(30); n != 1 {
		t.Errorf("%d pruned, want 1", n)
	}
	if f := s.Find([]string{"a", "b"}); f[0].State != "" || f[1].State != job.Done {
		t.Errorf("left: %+v", f)
	}
}

func exported(list []memdelay.Exported) string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return strings.Join(ids, " ")
}

func TestExport(t *testing.T) {
	eachStore(t, memdelay.Options{Verdicts: true}, func(t *testing.T, s *memdelay.Store) {
		mustPut(t, s, simple("late", 90), simple("soon", 30), simple("aside", 50))
		adopt(t, s, there("ended", job.Done, 1))
		adopt(t, s, there("adopted", job.Dead, 99))
		must(s.Claim(ctx, job.ClaimRequest{Now: 1, Until: 50, Max: 9, Blocked: []string{"t"}}))
		for limit, want := range []string{"", "ended", "ended adopted", "ended adopted soon", "ended adopted soon aside", "ended adopted soon aside late"} {
			if got := exported(s.Export(limit, false, nil)); got != want {
				t.Errorf("the first %d: %q, want %q", limit, got, want)
			}
		}
		if got := exported(s.Export(1<<31-1, true, nil)); got != "ended adopted" {
			t.Errorf("states only: %q", got)
		}
		list := s.Export(9, false, nil)
		// What changes meanwhile stays.
		must(s.Reschedule(ctx, []job.Reschedule{{ID: "late", Due: 91}, {ID: "adopted", Due: 5, Requeue: true}}))
		adopt(t, s, there("ended", job.Pending, 1))
		if changed, err := s.Forget(ctx, list); changed != 3 || err != nil {
			t.Errorf("%d changed, %v, want 3", changed, err)
		}
		wantStates(t, s, "late pending 0; adopted pending 3; ended pending 3; aside  0; ", "late", "adopted", "ended", "aside")
		if r := must(s.Put(ctx, []job.Job{simple("aside", 10)})); r[0].Duplicate || r[0].Err != nil {
			t.Errorf("a forgotten id is not free: %+v", r)
		}
	})
}

// TestForgetWhatEnded: a job that ends while it is exported is a verdict then,
// and counts as changed.
func TestForgetWhatEnded(t *testing.T) {
	s := memdelay.New(memdelay.Options{Verdicts: true})
	adopt(t, s, there("a", job.Pending, 1))
	list := s.Export(1, false, nil)
	must(s.Cancel(ctx, 2, job.ByIDs("a")))
	if changed, err := s.Forget(ctx, list); changed != 1 || err != nil || s.Usage().Verdicts != 1 {
		t.Errorf("%d changed, %v, usage %+v", changed, err, s.Usage())
	}
}

func TestTake(t *testing.T) {
	eachStore(t, memdelay.Options{}, func(t *testing.T, s *memdelay.Store) {
		for i := range job.Time(6) {
			adopt(t, s, there(fmt.Sprint("p", i), job.Pending, 10+i), there(fmt.Sprint("r", i), job.Running, 10+i))
		}
		taken := func(infos []job.Info) string {
			var ids []string
			for _, i := range infos {
				ids = append(ids, i.ID)
			}
			return strings.Join(ids, " ")
		}
		for _, c := range []struct{ got, want string }{
			{taken(s.TakeDue(12, 2)), "p0 p1"}, {taken(s.TakeDue(12, 9)), "p2"}, {taken(s.TakeDue(12, 9)), ""},
			{taken(s.TakeExpired(11, 9)), "r0 r1"}, {taken(s.Take([]string{"p5", "x", "r5", "p5"})), "p5 r5"},
		} {
			if c.got != c.want {
				t.Errorf("took %q, want %q", c.got, c.want)
			}
		}
		if err := s.Discard(ctx, []job.Ref{{ID: "p3", Incarnation: 8}, {ID: "p4"}, {ID: "r2", Incarnation: 7}}); err != nil {
			t.Fatal(err)
		}
		wantStates(t, s, "p3 pending 3; p4  0; r2  0; p0  0; ", "p3", "p4", "r2", "p0")
	})
}

// TestLimits: jobs of other stores do not count, and limits can change.
func TestLimits(t *testing.T) {
	s := memdelay.New(memdelay.Options{MaxJobs: 2, MaxBytes: 1000})
	adopt(t, s, there("x", job.Pending, 1), there("y", job.Pending, 1), there("z", job.Pending, 1))
	mustPut(t, s, simple("a", 1), simple("b", 1))
	put := func(j job.Job) error { return must(s.Put(ctx, []job.Job{j}))[0].Err }
	if err := put(simple("c", 1)); !errors.Is(err, job.ErrFull) {
		t.Errorf("Put beyond the limit: %v", err)
	}
	s.SetLimits(9, 0)
	large := simple("c", 1)
	large.Payload = make([]byte, 1000)
	if err := put(large); !errors.Is(err, job.ErrFull) {
		t.Errorf("Put beyond the limit of bytes: %v", err)
	}
	large.ID, large.Replace = "a", true
	if err := put(large); !errors.Is(err, job.ErrFull) {
		t.Errorf("replacing beyond the limit of bytes: %v", err)
	}
	s.SetLimits(0, 2000)
	if err := put(large); err != nil {
		t.Errorf("Put within the limit: %v", err)
	}
	must(s.Cancel(ctx, 1, job.ByIDs("a")))
	if u := s.Usage(); u.Jobs != 4 || u.Adopted != 3 || u.MaxJobs != 9 || u.MaxBytes != 2000 {
		t.Errorf("usage %+v", u)
	}
}

// BenchmarkMirror adopts and discards batches of jobs beside many others. An
// operation is one job.
func BenchmarkMirror(b *testing.B) {
	s := memdelay.New(memdelay.Options{})
	fill(b, s, 100_000)
	infos, refs := make([]job.Info, batch), make([]job.Ref, batch)
	for i, j := range dueJobs(batch, 1e15) {
		j.ID, j.Generated, j.Incarnation = job.NewID(0), true, 1
		infos[i], refs[i] = job.Info{Job: j, State: job.Pending, Next: j.Due + job.Time(i)}, job.Ref{ID: j.ID}
	}
	var adopting, again, discarding time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		adopting += timed(func() { adopt(b, s, infos...) })
		again += timed(func() { adopt(b, s, infos...) })
		discarding += timed(func() {
			if err := s.Discard(ctx, refs); err != nil {
				b.Fatal(err)
			}
		})
	}
	for name, d := range map[string]time.Duration{"adopt": adopting, "adopt-again": again, "discard": discarding} {
		b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), name+"-ns/op")
	}
}

// BenchmarkExport moves a million jobs out. An operation is one job.
func BenchmarkExport(b *testing.B) {
	s := memdelay.New(memdelay.Options{MaxJobs: 1 << 30})
	fill(b, s, max(b.N, 1_000_000))
	b.ResetTimer()
	for n := 0; n < b.N; n += 1024 {
		if changed, err := s.Forget(ctx, s.Export(1024, false, nil)); changed != 0 || err != nil {
			b.Fatal(changed, err)
		}
	}
}
