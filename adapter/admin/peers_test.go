package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/adapter/admin"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// TestRedisDown: what this bridge's disk holds is answered for; of all else the
// answer is that it is not known now.
func TestRedisDown(t *testing.T) {
	redis := testredis.Start(t)
	store, proxy := openFailover(t, redis, "b1")
	r := newRig(t, withStore(store))
	r.put("orders.x", "there")
	proxy.Stall()
	defer proxy.Resume()
	mode(t, store, job.ModeLocal)
	r.put("orders.x", "here", "gone")
	r.put("bills.x", "bill")

	if got := must[api.Job](r, "get", `{"id":"here"}`); got.State != job.Pending || got.Stored != job.StoredLocal {
		t.Errorf("%+v", got)
	}
	r.change("cancel", "gone", api.Change{Result: job.ResultDone})
	if got := must[api.Change](r, "reschedule", `{"id":"here","in":"3h"}`); got.Result != job.ResultDone {
		t.Errorf("reschedule: %+v", got)
	}
	for _, verb := range []string{"get", "cancel", "fire", "requeue", "get.orders.x", "cancel.orders.x"} {
		for _, id := range []string{"there", "nobody"} {
			r.refuses(verb, fmt.Sprintf(`{"id":%q}`, id), job.ErrUnavailable)
		}
	}
	r.refuses("list", ``, job.ErrUnavailable)
	r.refuses("purge", `{"target":">","state":"pending"}`, job.ErrUnavailable)
	if got := r.ids("list", `{"stored":"local"}`); !slices.Equal(got, []string{"bill", "here"}) {
		t.Errorf("on the disk: %v", got)
	}
	got := must[api.StatsAnswer](r, "stats", "")
	if got.Counted || got.Jobs.Pending != 2 || got.Local != 2 || got.Mode != "local" || got.Due.IsZero() {
		t.Errorf("stats: %+v", got)
	}
	if got := must[api.StatsAnswer](r, "stats.bills.x", ""); got.Counted || got.Jobs.Pending != 1 {
		t.Errorf("stats of a target: %+v", got)
	}
}

// ids lists the ids of one page, sorted.
func (r *rig) ids(verb, body string) (ids []string) {
	r.Helper()
	for _, j := range must[api.Page](r, verb, body).Jobs {
		ids = append(ids, string(j.ID))
	}
	slices.Sort(ids)
	return ids
}

// pair is two bridges over one Redis, of which the first is cut off and has jobs on
// its disk: l1 and l2. The second one answers.
func pair(t *testing.T, cutOff ...rigOption) (off, r *rig) {
	t.Helper()
	redis := testredis.Start(t)
	srv := testnats.Start(t)
	storeA, proxyA := openFailover(t, redis, "a")
	storeB, _ := openFailover(t, redis, "b")
	off = newRig(t, append(cutOff, withStore(storeA), beside(srv, "a"), withAdmin(func(o *admin.Options) { o.PeersOnly = true }))...)
	r = newRig(t, withStore(storeB), beside(srv, "b"))
	proxyA.Stall()
	t.Cleanup(proxyA.Resume)
	mode(t, storeA, job.ModeLocal)
	off.put("orders.x", "l1", "l2")
	r.knows("a")
	return off, r
}

// knows waits until the bridge has live peers of these ids.
func (r *rig) knows(peers ...string) {
	r.Helper()
	eventually(r, func() error {
		if got := r.bridge.LivePeers(); !slices.Equal(got, peers) {
			return fmt.Errorf("peers %v, want %v", got, peers)
		}
		return nil
	})
}

func TestHeldByAnotherBridge(t *testing.T) {
	off, r := pair(t)
	r.put("orders.x", "r1")
	r.put("bills.x", "r2")
	r.put("orders.x", "again") // its id is free, and taken again where Redis is away
	r.change("cancel", "again", api.Change{Result: job.ResultDone})
	off.put("orders.x", "again")
	if got := must[api.Job](r, "get", `{"id":"again"}`); got.State != job.Pending {
		t.Errorf("%+v", got)
	}
	r.change("cancel", "again", api.Change{Result: job.ResultDone})
	if got := must[api.Job](r, "get", `{"id":"l1"}`); got.State != job.Pending || got.Stored != job.StoredLocal || got.Bytes != 4 {
		t.Errorf("%+v", got)
	}
	if got := must[api.Job](r, "get.orders.x", `{"id":"l1"}`); got.State != job.Pending {
		t.Errorf("%+v", got)
	}
	r.refuses("get.bills.x", `{"id":"l1"}`, job.ErrUnknown)
	r.refuses("get", `{"id":"nobody"}`, job.ErrUnknown)
	r.change("cancel.bills.x", "l1", api.Change{Result: job.ResultUnknown})
	r.change("cancel", "nobody", api.Change{Result: job.ResultUnknown})
	for body, want := range map[string][]string{
		`{}`:                    {"l1", "l2", "r1", "r2"},
		`{"target":"orders.x"}`: {"l1", "l2", "r1"},
		`{"target":"*.x"}`:      {"l1", "l2", "r1", "r2"},
		`{"stored":"local"}`:    {"l1", "l2"},
		`{"state":"dead"}`:      nil,
	} {
		if got := r.ids("list", body); !slices.Equal(got, want) {
			t.Errorf("list %s: %v, want %v", body, got, want)
		}
	}
	for _, body := range []string{"", " ", "\n", "{}\n"} { // an empty one, also after an editor
		if got := r.ids("list", body); len(got) != 4 {
			t.Errorf("list %q: %v", body, got)
		}
	}
	if got := r.walk(`"limit":1`); len(got) != 4 {
		t.Errorf("one by one: %v", got)
	}

	if got := must[api.Change](r, "reschedule", `{"id":"l1","in":"4h"}`); got.Result != job.ResultDone || off.state("l1").Due != job.At(got.Due.Time) {
		t.Errorf("reschedule: %+v; there it is due %v", got, off.state("l1").Due.Time())
	}
	sub, err := r.nc.SubscribeSync("orders.x")
	if err != nil {
		t.Fatal(err)
	}
	r.change("fire", "l2", api.Change{Result: job.ResultDone})
	if m, err := sub.NextMsg(patient); err != nil || m.Header.Get("Delay-Job-Id") != "l2" {
		t.Errorf("fired: %v, %v", m, err)
	}
	if got := r.change("cancel", "l2", api.Change{Result: job.ResultRunning, Attempt: 1, Owner: "a"}); got.Result != job.ResultRunning {
		t.Errorf("cancel of a delivery in flight elsewhere: %+v", got)
	}
	if got := must[api.Purged](r, "purge", `{"target":"orders.x","state":"pending"}`); got.Purged != 2 {
		t.Errorf("purge: %+v", got)
	}
	if got := r.ids("list", ``); !slices.Equal(got, []string{"r2"}) {
		t.Errorf("left: %v", got)
	}
}

// TestPeerRefusesMutations: who switched them off on one bridge need not trust the
// others.
func TestPeerRefusesMutations(t *testing.T) {
	off, r := pair(t, withAdmin(func(o *admin.Options) { o.Mutations = func() bool { return false } }))
	r.refuses("cancel", `{"id":"l1"}`, job.ErrForbidden, "api.mutations", "bridge a")
	if got := off.state("l1").State; got != job.Pending {
		t.Errorf("the job is %s", got)
	}
	if got := must[api.Job](r, "get", `{"id":"l1"}`); got.State != job.Pending {
		t.Errorf("%+v", got)
	}
}

// haunt makes the bridge believe in a peer until the test ends.
func (r *rig) haunt(id string) {
	state := fmt.Appendf(nil, `{"bridge":%q,"circuit_state":"OPEN","version":1,"updated_ms":1}`, id)
	run(r, func(ctx context.Context) error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := r.nc.Publish(subjects.State("delay"), state); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// TestSilentPeer: a bridge that may hold the job and does not answer makes the
// answer indefinite; one that has gone does not.
func TestSilentPeer(t *testing.T) {
	store, _ := openFailover(t, testredis.Start(t), "b")
	r := newRig(t, withStore(store), beside(testnats.Start(t), "b"))
	r.put("orders.x", "p1")
	r.haunt("ghost")
	r.knows("ghost")
	r.refuses("get", `{"id":"nobody"}`, job.ErrUnknown)
	r.change("cancel", "nobody", api.Change{Result: job.ResultUnknown})
	if got := r.ids("list", ``); !slices.Equal(got, []string{"p1"}) {
		t.Errorf("list: %v", got)
	}
	asked := make(chan *nats.Msg, 10)
	if _, err := r.nc.ChanSubscribe(subjects.PeerAPI("delay", "ghost"), asked); err != nil {
		t.Fatal(err)
	}
	if got := must[api.Job](r, "get", `{"id":"p1"}`); got.State != job.Pending || len(asked) != 0 {
		t.Errorf("%+v, %d questions", got, len(asked))
	}
	r.refuses("get", `{"id":"nobody"}`, job.ErrUnavailable, "ghost")
	r.refuses("cancel", `{"id":"nobody"}`, job.ErrUnavailable, "ghost")
	r.refuses("list", ``, job.ErrUnavailable, "ghost")
	if m := within(t, "the question", asked); !strings.Contains(string(m.Data), `"nobody"`) {
		t.Errorf("asked %s", m.Data)
	}
}
