package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/subjects"
)

// The tests here are about workers that must not be taken for dead. Each shows
// in the end that a worker that is dead was.

// blink is how long a connection is cut.
const blink = 150 * time.Millisecond

// guardTTL and guardBeat keep the tests that wait for the TTL short.
const guardTTL, guardBeat = 2 * time.Second, 500 * time.Millisecond

func (r *relay) url() string { return "nats://" + r.addr() }

// blink cuts all connections for a moment.
func (r *relay) blink() {
	r.cut()
	time.Sleep(blink) // the length of the fault
	r.open()
}

func (w *works) relay() *relay {
	w.t.Helper()
	return startRelay(w.t, strings.TrimPrefix(w.nats.URL(), "nats://"))
}

// A worker whose connection is cut and that is back at once, again and again,
// keeps its jobs: one of the pings that go nowhere meanwhile proves nothing.
func TestWorkerReconnects(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		w.start()
		way := w.relay()
		h1 := w.join("w1", "-nats-url", way.url(), "-capacity", "5", "-work", "6s")
		ids := w.sendAll(5, crewTarget)
		for _, id := range ids {
			w.awaitStarted(id, 1)
		}
		h2 := w.join("w2", "-capacity", "5")
		w.awaitPinged("w1")
		for range 6 {
			way.blink()
			time.Sleep(500 * time.Millisecond) // longer than between two pings
		}
		w.close(Once, h1, h2)
		w.wantOnce()
	})
}

// The server goes away for everybody. The bridge is back first, and finds nobody
// to answer its pings; no worker loses a job.
func TestBridgeReconnects(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		way, theirs := w.relay(), w.relay()
		w.start("--nats-url", way.url())
		h1 := w.join("w1", "-nats-url", theirs.url(), "-capacity", "5", "-work", "5s")
		h2 := w.join("w2", "-nats-url", theirs.url(), "-capacity", "5", "-work", "5s")
		for _, id := range w.sendAll(10, crewTarget) {
			w.awaitStarted(id, 1)
		}
		w.awaitPinged("w1")
		theirs.cut()
		way.blink()
		time.Sleep(2 * time.Second) // how much later the workers are back
		theirs.open()
		w.close(Explained, h1, h2)
		w.wantOnce()
	})
}

// mute may do all but answer pings.
const mute = `authorization {
	users = [
		{user: boss, password: boss}
		{user: mute, password: mute, permissions: {subscribe: {deny: "delay.ping.>"}}}
	]
}
no_auth_user: boss`

// A worker that may not be asked whether it is there is not taken for dead; when
// it is killed, the TTL tells.
func TestWorkerWithoutPermissionForPings(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind, testnats.Config(mute))
		w.start("--workers-ttl", guardTTL.String())
		url := strings.Replace(w.nats.URL(), "nats://", "nats://mute:mute@", 1)
		flags := []string{"-nats-url", url, "-beat", guardBeat.String(), "-capacity", "1", "-first", "3s"}
		hands := map[string]*hand{"w1": w.join("w1", flags...), "w2": w.join("w2", flags...)}
		w.awaitStarted(w.send(0, crewTarget), 1)
		w.settled() // after the TTL and many pings
		w.wantOnce()

		lost := w.send(0, crewTarget)
		first := w.awaitStarted(lost, 1)
		w.awaitPinged(first.Worker)
		killed := time.Now()
		hands[first.Worker].kill()
		w.wantTTL(killed, w.awaitStarted(lost, 2))
		delete(hands, first.Worker)
		for _, h := range hands {
			w.close(Explained, h)
		}
	})
}

// wantTTL reports a job that did not come again by the TTL of the worker that was
// killed.
func (w *works) wantTTL(killed time.Time, again report.Report) {
	w.t.Helper()
	took := again.Time().Sub(killed)
	if took < guardTTL-guardBeat-100*time.Millisecond || took > guardTTL+time.Second {
		w.t.Errorf("the job came again %v after the kill, want about %v: the TTL decides", took, guardTTL)
	}
}

// awaitPinged returns when the worker has been asked, and has answered, whether it
// is there.
func (w *works) awaitPinged(worker string) {
	w.t.Helper()
	nc := w.client()
	defer nc.Close() // who listens to pings answers for the worker, as the server sees it
	pings, err := nc.SubscribeSync(subjects.Worker("delay", subjects.KindPing, worker))
	if err != nil {
		w.t.Fatal(err)
	}
	for range 2 {
		if _, err := pings.NextMsg(patient); err != nil {
			w.t.Fatalf("ping of %s: %v", worker, err)
		}
	}
}

// Of four workers three vanish at one time: the fault is more likely between them
// and the bridge, so that the TTL decides.
func TestMostWorkersVanish(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		w.start("--workers-ttl", guardTTL.String())
		hands := map[string]*hand{}
		for i := range 4 {
			hands[named("w", i)] = w.join(named("w", i), append([]string{"-beat", guardBeat.String()}, untilKilled...)...)
		}
		at := map[string]string{} // job by its worker
		for _, id := range w.sendAll(4, crewTarget) {
			at[w.awaitStarted(id, 1).Worker] = id
		}
		if len(at) != 4 {
			t.Fatalf("jobs at %v, want one at each worker", at)
		}
		for id := range at {
			w.awaitPinged(id)
		}
		killed := time.Now()
		for _, id := range []string{"w1", "w2", "w3"} {
			hands[id].kill()
		}
		fresh := w.join("w4", "-capacity", "10")
		for _, id := range []string{"w1", "w2", "w3"} {
			w.wantTTL(killed, w.awaitStarted(at[id], 2))
		}
		hands["w0"].kill()
		w.close(Explained, fresh)
	})
}

// sendAll publishes n jobs that are due now, and returns their ids.
func (w *works) sendAll(n int, target string) (ids []string) {
	w.t.Helper()
	for range n {
		ids = append(ids, w.send(0, target))
	}
	return ids
}
