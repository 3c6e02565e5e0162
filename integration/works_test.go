package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/delaybridge/delaybridge/internal/failpoint"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/nats-io/nats.go"
)

// works are a bridge and workers that own their jobs, all in processes of their
// own.
type works struct {
	*system
	*crew
	nc     *nats.Conn // of producers
	bridge *child
	flags  []string
}

// localStore is the store of a bridge without Redis: its disk.
const localStore storeKind = "local"

// onBothDisks runs a test with a bridge that has its jobs in Redis, and with one
// that has them on its disk.
func onBothDisks(t *testing.T, test func(t *testing.T, kind storeKind)) {
	t.Parallel()
	for _, kind := range []storeKind{redisStore, localStore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// newWorks starts the servers, but no bridge: see start and startArmed. What Redis
// confirmed it has on its disk, so that no kill loses it.
func newWorks(t *testing.T, kind storeKind, opts ...testnats.Option) *works {
	t.Helper()
	return newWorksOn(t, kind, "always", opts...)
}

// newWorksOn is newWorks on a Redis that syncs its disk as appendfsync says.
func newWorksOn(t *testing.T, kind storeKind, appendfsync string, opts ...testnats.Option) *works {
	t.Helper()
	s := &system{Checker: NewChecker(), t: t, kind: kind, dir: t.TempDir(), silence: patient, nats: testnats.Start(t, opts...)}
	s.killed.Store(true)
	w := &works{system: s, crew: newCrew(s)}
	if kind == redisStore {
		s.redis = testredis.Start(t, "--appendfsync", appendfsync)
		s.url = s.redis.URL()
		s.look, _ = s.open("test")
	} else {
		w.flags = []string{"--store", "local"}
	}
	w.flags = append(w.flags, "--http-addr", "127.0.0.1:0", "--drain", "1s")
	return w
}

// start starts the bridge.
func (w *works) start(flags ...string) {
	w.t.Helper()
	w.startArmed("", 1, flags...)
}

// startArmed starts a bridge that ends as kill -9 does when it comes to the point
// for the nth time. Later starts keep the flags.
func (w *works) startArmed(p failpoint.Point, nth int, flags ...string) {
	w.t.Helper()
	w.flags = append(w.flags, flags...)
	w.bridge = w.system.armed(p, nth, "b1", w.flags...)
	if w.nc == nil {
		w.nc = w.client()
	}
}

// send publishes a job that is due after d, and returns its id.
func (w *works) send(d time.Duration, target string, headers ...string) string {
	w.t.Helper()
	m := w.in(d, target)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	return w.accept(w.nc, m).ID
}

// spread publishes n jobs that become due one after the other within d, from d
// on.
func (w *works) spread(n int, d time.Duration, target string) {
	w.t.Helper()
	begin := time.Now().Add(d).Truncate(time.Millisecond)
	w.flood(n, func(i int) *nats.Msg {
		return w.at(begin.Add(d*time.Duration(i)/time.Duration(n)).Truncate(time.Millisecond), target)
	})
}

// settled waits until all jobs have been delivered and no store holds one.
func (w *works) settled() {
	w.t.Helper()
	w.awaitCounts("all delivered", func(c Counts) bool { return c.Missing == 0 })
	if w.kind == redisStore {
		w.awaitEmpty()
		return
	}
	w.eventually("no job on the disk of the bridge", func(context.Context) (bool, error) {
		n, err := w.bridge.metric("delaybridge_local_jobs")
		return n == 0, err
	})
}

// close waits until all is done, stops workers and bridge in order, and reports
// what was broken.
func (w *works) close(rule Rule, workers ...*hand) {
	w.t.Helper()
	w.settled()
	for _, h := range workers {
		h.end()
	}
	w.bridge.end()
	for _, v := range w.Violations(rule) {
		w.t.Error(v)
	}
	if w.t.Failed() {
		w.t.Logf("last reports: %v", w.tail())
	}
}

// again returns the starts of jobs that were started before, each with the start
// before it.
func (c *crew) again() (out [][2]report.Report) {
	last := map[string]report.Report{}
	for _, r := range c.seen(func(r report.Report) bool { return r.Event == report.Started }) {
		if before, ok := last[r.ID]; ok {
			out = append(out, [2]report.Report{before, r})
		}
		last[r.ID] = r
	}
	return out
}

// wantOnce reports jobs that were started more than once.
func (w *works) wantOnce() {
	w.t.Helper()
	for _, r := range w.again() {
		w.t.Errorf("job %s was started by %s as attempt %d and, %v later, by %s as attempt %d", r[0].ID,
			r[0].Worker, r[0].Attempt, r[1].Time().Sub(r[0].Time()), r[1].Worker, r[1].Attempt)
	}
}

// wantAgainOnlyOf reports jobs that were started once more though the worker
// that had them is not the one that was killed.
func (w *works) wantAgainOnlyOf(killed string) {
	w.t.Helper()
	for _, r := range w.again() {
		if r[0].Worker != killed {
			w.t.Errorf("job %s was started by %s, which lives, and again by %s as attempt %d", r[0].ID, r[0].Worker, r[1].Worker, r[1].Attempt)
		}
	}
}

// crashSpeed has workers beat, and bridges believe them dead, more quickly than
// by default, so that tests of crashes are short. It is not what they measure.
var (
	crashBeat = []string{"-beat", "250ms"}
	crashTTL  = []string{"--workers-ttl", "2s", "--workers-ping", "200ms"}
)

func beatOf(flags ...string) []string { return append(flags, crashBeat...) }

func named(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }
