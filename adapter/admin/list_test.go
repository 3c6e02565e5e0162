package admin_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
)

// walk lists page by page, with a body that has these fields beside the cursor, and
// returns the ids in the order they came.
func (r *rig) walk(fields string) (ids []string) {
	r.Helper()
	for cursor := ""; ; {
		body := "{" + fields + "}"
		if cursor != "" {
			body = fmt.Sprintf(`{%s,"cursor":%q}`, fields, cursor)
		}
		page := must[api.Page](r, "list", body)
		for _, j := range page.Jobs {
			ids = append(ids, string(j.ID))
		}
		if cursor = page.Cursor; cursor == "" {
			return ids
		}
		if len(ids) > 10_000 {
			r.Fatal("the list does not end")
		}
	}
}

func numbered(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%03d", prefix, i))
	}
	return ids
}

// TestListWhileJobsChange: what is there throughout is seen exactly once, whatever
// comes, goes and moves meanwhile.
func TestListWhileJobsChange(t *testing.T) {
	stores(t, func(t *testing.T, r *rig) {
		steady := numbered("steady", 60)
		r.put("orders.a", steady[:30]...)
		r.put("orders.b", steady[30:]...)
		r.put("bills.a", numbered("bill", 40)...)
		r.put("orders.a", numbered("moves", 40)...)
		stop := make(chan struct{})
		var changing sync.WaitGroup
		changing.Go(func() { r.churn(stop) })
		for _, fields := range []string{`"limit":7`, `"limit":7,"target":"orders.*"`, `"limit":3,"target":">"`, `"limit":9,"target":"orders.b"`} {
			want := steady
			if strings.Contains(fields, "orders.b") {
				want = steady[30:]
			}
			var got []string
			for _, id := range r.walk(fields) {
				if strings.HasPrefix(id, "steady") {
					got = append(got, id)
				} else if strings.HasPrefix(id, "bill") && strings.Contains(fields, "orders") {
					t.Errorf("%s: %s is not of the pattern", fields, id)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: jobs that were there throughout:\n%v, want\n%v", fields, got, want)
			}
		}
		close(stop)
		changing.Wait()
	})
}

// churn puts, cancels and moves jobs until stop is closed.
func (r *rig) churn(stop <-chan struct{}) {
	ctx, base, rnd := context.Background(), r.bridge.Now().Add(hour/2), rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-stop:
			return
		default:
		}
		id, due := fmt.Sprint("new", rnd.IntN(50)), base.Add(time.Duration(rnd.IntN(3600))*time.Second)
		_, put := r.store.Put(ctx, []job.Job{{ID: id, Target: "orders.b", Due: due, AckWait: time.Minute}})
		_, cancel := r.store.Cancel(ctx, r.bridge.Now(), job.ByIDs(fmt.Sprint("new", rnd.IntN(50))))
		_, move := r.store.Reschedule(ctx, []job.Reschedule{{ID: fmt.Sprintf("moves%03d", rnd.IntN(40)), Due: due}})
		if err := errors.Join(put, cancel, move); err != nil {
			r.Errorf("churn: %v", err)
			return
		}
	}
}

func TestListByPattern(t *testing.T) {
	r := newRig(t)
	r.put("orders.a", numbered("a", 25)...)
	r.put("orders.b.c", numbered("b", 25)...)
	r.end(job.Bury, "orders.a", "dead")
	r.lease("orders.b.c", "running")
	for fields, want := range map[string]int{
		`"limit":10`:                         50,
		`"limit":25,"target":"orders.a"`:     25,
		`"limit":25,"target":"orders.*"`:     25,
		`"limit":50,"target":"orders.*.c"`:   25,
		`"limit":1,"target":"orders.>"`:      50,
		`"limit":5,"target":"bills.>"`:       0,
		`"limit":5,"target":"bills.x"`:       0,
		`"state":"dead","target":"orders.*"`: 1,
		`"state":"running","target":"*.b.*"`: 1,
	} {
		got := r.walk(fields)
		if slices.Sort(got); len(slices.Compact(got)) != want {
			t.Errorf("%s: %d jobs, want %d", fields, len(got), want)
		}
	}
	if got := must[api.Page](r, "list", `{"limit":3,"target":"orders.*"}`); len(got.Jobs) != 3 || got.Cursor == "" {
		t.Errorf("a page of 3: %+v", got)
	}
	if got := r.ask("list", `{"target":"bills.x"}`); string(got.body) != `{"jobs":[]}` {
		t.Errorf("an empty page: %s", got.body)
	}
	page := must[api.Page](r, "list", "")
	if len(page.Jobs) != 50 || page.Cursor != "" || !slices.IsSortedFunc(page.Jobs, func(a, b api.Job) int { return a.Next.Compare(b.Next.Time) }) {
		t.Errorf("%d jobs, cursor %q", len(page.Jobs), page.Cursor)
	}
}

// TestListScansInPieces: one call looks at a bounded number of jobs, and the next one
// goes on from there.
func TestListScansInPieces(t *testing.T) {
	r := newRig(t)
	for part := range 5 {
		r.put("orders.a", numbered(fmt.Sprint("a", part, "-"), 3000)...)
	}
	put(t, r.store, r.bridge.Now().Add(10*hour), "orders.b.c", "last")
	page := must[api.Page](r, "list", `{"target":"*.b.c"}`)
	if len(page.Jobs) != 0 || page.Cursor == "" {
		t.Fatalf("%d jobs, cursor %q", len(page.Jobs), page.Cursor)
	}
	if got := r.walk(`"target":"*.b.c"`); !slices.Equal(got, []string{"last"}) {
		t.Errorf("%v", got)
	}
}

// TestAnswersFitAMessage: a page is cut to what the server lets through.
func TestAnswersFitAMessage(t *testing.T) {
	r := newRig(t, withNATS(testnats.MaxPayload(16<<10)))
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(i)+strings.Repeat("\x01", 250))
	}
	r.put("orders.x", ids...)
	first := must[api.Page](r, "list", `{"limit":1000}`)
	if len(first.Jobs) == 0 || len(first.Jobs) > 10 || first.Cursor == "" {
		t.Errorf("%d jobs, cursor %q", len(first.Jobs), first.Cursor)
	}
	if got := r.walk(`"limit":1000`); len(got) != 100 {
		t.Errorf("%d jobs in all", len(got))
	}
}

// slowPages is a store whose pages are short, and take their time.
type slowPages struct{ job.Store }

func (s slowPages) List(ctx context.Context, q job.Query) (job.Page, error) {
	q.Limit = min(q.Limit, 10)
	time.Sleep(150 * time.Millisecond)
	return s.Store.List(ctx, q)
}

// TestPurgeGoesOn: a purge whose time is up before it finds a job among many others
// goes on there.
func TestPurgeGoesOn(t *testing.T) {
	r := newRig(t, withStore(slowPages{memdelay.New(memdelay.Options{})}), withAdmin(func(o *admin.Options) { o.Timeout = time.Second }))
	r.put("orders.a", numbered("a", 65)...)
	put(t, r.store, r.bridge.Now().Add(10*hour), "orders.b.c", "b1", "b2")
	cursor, calls, sum := "", 0, 0
	for {
		got := must[api.Purged](r, "purge", fmt.Sprintf(`{"target":"*.b.c","state":"pending","cursor":%q}`, cursor))
		sum += got.Purged
		calls++
		if got.Cursor == "" {
			break
		}
		if got.Cursor == cursor || calls > 10 {
			t.Fatalf("call %d goes on at %q", calls, cursor)
		}
		cursor = got.Cursor
	}
	if sum != 2 || calls == 1 {
		t.Errorf("%d jobs in %d calls", sum, calls)
	}
	if got := r.state("a000").State; got != job.Pending {
		t.Errorf("a job of another target is %s", got)
	}
	r.refuses("purge", `{"target":">","cursor":"nonsense"}`, job.ErrHeader, "cursor")
}

// shortLooks is a store that looks at few jobs for each page.
type shortLooks struct{ job.Store }

func (s shortLooks) List(ctx context.Context, q job.Query) (job.Page, error) {
	target := q.Target
	q.Target, q.Limit = "", 5
	p, err := s.Store.List(ctx, q)
	p.Jobs = slices.DeleteFunc(p.Jobs, func(i job.Info) bool { return target != "" && i.Target != target })
	return p, err
}

// TestCursorsTellNothing: a cursor of the target form says nothing of the jobs of others
// that were looked at, and goes on all the same.
func TestCursorsTellNothing(t *testing.T) {
	redis, err := redisdelay.Open(t.Context(), redisdelay.Options{URL: testredis.Start(t).URL(), BridgeID: "b1", LookEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	for name, store := range map[string]job.Store{"memory": memdelay.New(memdelay.Options{}), "redis": redis} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withStore(shortLooks{store}))
			due := r.bridge.Now().Add(hour)
			var jobs []job.Job
			for i := range 2000 { // half of them at one time
				jobs = append(jobs, job.Job{ID: fmt.Sprintf("secret%04d", i), Target: "bills.x", Due: due.Add(time.Duration(max(0, i-1000)) * time.Millisecond), AckWait: time.Minute})
			}
			for i := range 20 {
				jobs = append(jobs, job.Job{ID: fmt.Sprintf("t-mine%02d", i), Target: "orders.x", Due: due.Add(time.Duration(i%5) * time.Second / 5), AckWait: time.Minute})
			}
			for part := range slices.Chunk(jobs, 250) {
				if _, err := r.store.Put(context.Background(), part); err != nil {
					t.Fatal(err)
				}
			}
			for _, limit := range []int{3, 100} {
				var ids []string
				calls := 0
				for cursor := ""; calls < 100; {
					page := must[api.Page](r, "list.orders.x", fmt.Sprintf(`{"limit":%d,"cursor":%q}`, limit, cursor))
					for _, j := range page.Jobs {
						ids = append(ids, string(j.ID))
					}
					calls++
					if cursor = page.Cursor; cursor == "" {
						break
					}
					if _, id, err := job.ParseCursor(cursor); err != nil || len(id) == len("secret0000") && !strings.HasPrefix(id, "t-") {
						t.Errorf("a cursor names %q, %v", id, err)
					}
				}
				if slices.Sort(ids); len(ids) != 20 || len(slices.Compact(ids)) != 20 || calls < 4 {
					t.Errorf("%d jobs in %d calls: %v", len(ids), calls, ids)
				}
			}
			purged := 0
			for begin, cursor := true, ""; begin || cursor != ""; begin = false {
				got := must[api.Purged](r, "purge.orders.x", fmt.Sprintf(`{"state":"pending","cursor":%q}`, cursor))
				purged, cursor = purged+got.Purged, got.Cursor
			}
			if purged != 20 {
				t.Errorf("%d jobs purged, want 20", purged)
			}
		})
	}
}
