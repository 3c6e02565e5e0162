package redisdelay

import (
	"context"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testproxy"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
)

// TestIDThatIsTextOfATarget asks about a job whose id, as long as a generated
// one, is the text of a target of jobs that were completed.
func TestIDThatIsTextOfATarget(t *testing.T) {
	const text = "orders.email"
	server := testredis.Start(t)
	ctx := context.Background()
	for _, completed := range []int{1, 3} {
		flush(t, raw(t, server))
		l := &life{t: t, s: open(t, server.URL(), func(o *Options) { o.Shards = 1 }), t0: job.At(time.Now())}
		var list []job.Settlement
		for range completed {
			l.put(l.job("", text, 0))
			d := l.claim(0, "")[0]
			list = append(list, job.Settlement{Ref: d.Ref(), Target: d.Target, Due: d.Due})
		}
		l.settle(list...)

		infos, err := l.s.Get(ctx, []string{text})
		if l.must(err); infos[0].State != "" {
			t.Errorf("Get: %+v", infos[0])
		}
		changes, err := l.s.Cancel(ctx, l.t0, job.ByIDs(text))
		if l.must(err); changes[0].Result != job.ResultUnknown {
			t.Errorf("Cancel: %+v", changes[0])
		}
		l.settleBesideMadeUp(text)
		res, err := l.s.Put(ctx, []job.Job{l.job(text, "orders.new", 0)})
		if l.must(err); res[0].Err != nil || res[0].Duplicate {
			t.Errorf("Put: %+v", res[0])
		}
	}
}

// TestDamagedEntryStrandsNoJob: what is said of a job that ended cannot be read,
// which must not cost the others of the batch.
func TestDamagedEntryStrandsNoJob(t *testing.T) {
	server := testredis.Start(t)
	l := &life{t: t, s: open(t, server.URL(), func(o *Options) { o.Shards = 1 }), t0: job.At(time.Now())}
	ds := l.claimThree()
	l.must(raw(t, server).HSet(context.Background(), "test:{0}:done:0", "damaged", "d").Err())
	if _, err := l.s.Settle(context.Background(), l.t0, l.besideMadeUp(ds, "damaged")); err == nil {
		t.Error("Settle reads an entry of one byte")
	}
	l.allClaimable(len(ds))
}

// settleBesideMadeUp settles living jobs in one batch with tokens that somebody
// made up for id: these are refused, and every job can be claimed again.
func (l *life) settleBesideMadeUp(id string) {
	l.t.Helper()
	ds := l.claimThree()
	batch := l.besideMadeUp(ds, id)
	for _, generated := range []bool{false, true} {
		batch[2].Generated = generated
		res, err := l.s.Settle(context.Background(), l.t0, batch)
		if err != nil {
			l.t.Errorf("Settle: %v", err)
			break
		}
		if res[2] != job.Unknown {
			l.t.Errorf("a token that was made up: %v, want %v", res[2], job.Unknown)
		}
	}
	l.allClaimable(len(ds))
}

func (l *life) claimThree() []job.Delivery {
	l.t.Helper()
	l.put(l.job("aside", "orders.slow", 0), l.job("again", "orders.slow", 0), l.job("back", "orders.slow", 0))
	return l.claim(0, "")
}

// besideMadeUp gives three deliveries back, each in another way, and in the same
// batch completes one of id with a token that was made up.
func (l *life) besideMadeUp(ds []job.Delivery, id string) []job.Settlement {
	return []job.Settlement{
		{Ref: ds[0].Ref(), Outcome: job.SetAside, At: l.t0, Target: ds[0].Target, Due: l.t0},
		{Ref: ds[1].Ref(), Outcome: job.Retry, At: l.t0},
		{Ref: job.Ref{ID: id, Incarnation: 1, Attempt: 1, Nonce: 1}, Outcome: job.Complete},
		{Ref: ds[2].Ref(), Outcome: job.Release, At: l.t0},
	}
}

func (l *life) allClaimable(want int) {
	l.t.Helper()
	if n := len(l.claim(0, "orders.slow")) + len(l.claim(0, "")); n != want {
		l.t.Errorf("%d of %d jobs can be claimed again", n, want)
	}
}

// TestRepeatedClaimKeepsDueTimes loses the reply of a claim of overdue jobs: the
// repeat says when they were due, not when they were claimed.
func TestRepeatedClaimKeepsDueTimes(t *testing.T) {
	server := testredis.Start(t)
	proxy := testproxy.Start(t, server.Addr())
	l := &life{t: t, s: open(t, proxy.URL(), oneByOne), t0: job.At(time.Now())}
	l.put(l.job("fresh", "orders.new", time.Second), l.job("retried", "orders.new", 0))
	ds := l.claim(0, "")
	l.settle(job.Settlement{Ref: ds[0].Ref(), Outcome: job.Retry, At: l.t0.Add(2 * time.Second)})
	proxy.DropReplies(10, firstTime(claimScript))
	ds = l.claim(time.Minute, "")
	if proxy.Dropped() == 0 || len(ds) != 2 {
		t.Fatalf("%d jobs claimed, %d replies lost", len(ds), proxy.Dropped())
	}
	for i, want := range []time.Duration{time.Second, 2 * time.Second} {
		if got := ds[i].Next.Sub(l.t0); got != want {
			t.Errorf("%s was due after %v, want %v", ds[i].ID, got, want)
		}
	}
}
