package adapter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// orphaned is the event of that name.
type orphaned struct {
	Type, Bridge, Worker, Lost, Why string
	Jobs                            int
	IDs                             []string
}

func decodeOrphaned(t *testing.T, m *nats.Msg) (e orphaned) {
	t.Helper()
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
	return e
}

// TestOrphanedOfAWorker: a worker that is not heard any more is one event, whatever
// it had.
func TestOrphanedOfAWorker(t *testing.T) {
	const jobs = 25
	r := newRig(t, withConfig(fast), withConfig(func(c *adapter.Config) { c.WorkerTTL = 100 * time.Millisecond }))
	events := r.listen("delay.event.orphaned")
	w := r.owner("w1", jobs, "t.x")
	stop := w.beating()
	ids := r.scheduleAll(jobs, always("delay.in.0s.t.x"), always("p"))
	held := make([]*nats.Msg, 0, jobs)
	for range jobs {
		held = append(held, receive(t, w.jobs))
	}
	w.beat(held...)
	stop()
	e := decodeOrphaned(t, receive(t, events))
	if e.Type != "orphaned" || e.Bridge != "b1" || e.Worker != "w1" || e.Why != "no_heartbeat" || e.Jobs != jobs || len(e.IDs) != 20 {
		t.Errorf("event %+v", e)
	}
	for _, id := range e.IDs {
		if !slices.Contains(ids, id) {
			t.Errorf("event of %q, which is none of them", id)
		}
	}
}

// leased puts a job into store that owner has had under a lease for a minute.
func leased(t *testing.T, store job.Store, owner string, lease time.Duration) string {
	t.Helper()
	past := job.Time(time.Now().Add(-time.Minute).UnixMicro())
	jobs := []job.Job{{Target: "t.x", Due: past, AckWait: lease, MaxAttempts: 3}}
	if _, err := store.Put(context.Background(), jobs); err != nil {
		t.Fatal(err)
	}
	c, err := store.Claim(context.Background(), job.ClaimRequest{Now: past, Until: past, Max: 1, Owner: owner})
	if err != nil || len(c.Deliveries) != 1 {
		t.Fatalf("claimed %+v, %v", c, err)
	}
	return jobs[0].ID
}

// TestOrphanedOfABridge: what a bridge that is gone had leased is told of once, be it
// a worker's or nobody's.
func TestOrphanedOfABridge(t *testing.T) {
	for name, c := range map[string]struct {
		worker string
		lease  time.Duration
	}{"over": {"", time.Second}, "of a worker": {"w1", time.Hour}, "of a worker, over": {"w1", time.Second}} {
		t.Run(name, func(t *testing.T) {
			store, srv := memdelay.New(memdelay.Options{}), testnats.Start(t)
			id := leased(t, store, job.OwnerOf("gone", c.worker), c.lease)
			events := make(chan *nats.Msg, 100)
			nc := connect(t, srv.URL())
			if _, err := nc.ChanSubscribe("delay.event.orphaned", events); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			newRig(t, withStore(store), func(c *rigConfig) { c.srv, c.bridge.ID = srv, "b2" })
			e := decodeOrphaned(t, receive(t, events))
			if e.Bridge != "b2" || e.Lost != "gone" || e.Worker != c.worker || e.Why != "bridge_gone" || e.Jobs != 1 || !slices.Equal(e.IDs, []string{id}) {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// documented returns, by type, which fields the examples in docs/events.md have.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			kind, fields := eventFields(t, []byte(line))
			out[kind] = append(out[kind], fields)
		}
	}
	return out
}

// eventFields returns the type of an event and its fields with their types.
func eventFields(t *testing.T, data []byte) (kind, fields string) {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	for _, name := range slices.Sorted(maps.Keys(e)) {
		fields += fmt.Sprintf("%s %T, ", name, e[name])
	}
	if e["version"] != 1.0 {
		t.Errorf("version of %s", data)
	}
	kind, _ = e["type"].(string)
	return kind, fields
}

// TestEventsAreAsDocumented has a bridge publish each kind.
func TestEventsAreAsDocumented(t *testing.T) {
	store := newModeStore(job.ModeRedis)
	leased(t, store.Store, "gone/w1", time.Second)
	reg := prometheus.NewRegistry()
	r := newRig(t, withStore(store), withConfig(fast), withConfig(func(c *adapter.Config) { c.WorkerTTL, c.Registerer = 100*time.Millisecond, reg }))
	events := r.listen("delay.event.>")
	if err := r.nc.Publish("delay.in.soon.t.x", nil); err != nil {
		t.Fatal(err)
	}
	work := r.worker("t.y")
	r.schedule("delay.in.0s.t.y", "p")
	r.settle(receive(t, work), "+TERM no such order")
	w := r.owner("w2", 1, "t.z")
	w.beat()
	r.schedule("delay.in.0s.t.z", "p")
	receive(t, w.jobs)
	store.change(r, job.ModeLocal)
	store.change(r, job.ModeMigrating)
	r.bridge.Joined("m1", job.Info{Job: job.Job{ID: "a", Target: "t.x"}})
	r.bridge.Migrated("m1", 7, 1500*time.Millisecond)
	store.change(r, job.ModeRedis)
	r.bridge.DataLoss("shard 3 is empty", 4)

	docs, seen := documented(t), map[string]int{}
	want := []string{"data_loss", "dead", "degraded", "migrated", "orphaned", "recovered", "rejected"}
	if kinds := slices.Sorted(maps.Keys(docs)); !slices.Equal(kinds, want) {
		t.Errorf("docs/events.md has examples of %v, want %v", kinds, want)
	}
	for len(seen) < len(want) {
		m := receive(t, events)
		kind, fields := eventFields(t, m.Data)
		if m.Subject != "delay.event."+kind || !slices.Contains(docs[kind], fields) {
			t.Errorf("%s: %s\nhas the fields %s\ndocumented:    %s", m.Subject, m.Data, fields, strings.Join(docs[kind], "\n               "))
		}
		seen[kind]++
	}
	for _, kind := range want {
		if n, _ := metric(t, reg, "delaybridge_events_total", "event", kind); n < float64(seen[kind]) {
			t.Errorf("%v events %s counted, %d seen", n, kind, seen[kind])
		}
	}
}
