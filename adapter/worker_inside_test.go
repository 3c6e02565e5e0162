package adapter

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// Rules about workers whose times are too long to wait for, or whose order of
// steps only a caller can choose.

func newTestDispatcher(t *testing.T) *dispatcher {
	t.Helper()
	d, err := newDispatcher(Config{ID: "b1"}, func() job.Time { return job.At(time.Now()) }, func() int { return 1000 })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// testBeat has the dispatcher hear an idle worker.
func (d *dispatcher) testBeat(name string, capacity int, pattern string, running ...job.Ref) beatResult {
	m, _ := subjects.NewMatcher([]string{pattern}) // the caller knows that it is valid
	body := beatBody{Worker: name, Subjects: []string{pattern}, Capacity: capacity, Free: capacity - len(running), Directed: true}
	return d.beat(&beat{beatBody: body, covers: m, running: running}, d.now())
}

func testDelivery(id, target, owner string) job.Delivery {
	return job.Delivery{Job: job.Job{ID: id, Target: target, AckWait: time.Minute}, Attempt: 1, Nonce: 1, Owner: owner}
}

// deliver sends jobs of target to a worker.
func (d *dispatcher) deliver(t *testing.T, worker, target string, ids ...string) []*flight {
	t.Helper()
	var ds []job.Delivery
	for _, id := range ids {
		ds = append(ds, testDelivery(id, target, job.OwnerOf(d.bridge, worker)))
	}
	d.admit(ds, true)
	fs, _, _ := d.collect(d.now(), make([]*flight, 0, len(ids)))
	if len(fs) != len(ids) {
		t.Fatalf("%d jobs sent, want %d", len(fs), len(ids))
	}
	return fs
}

// A slot that a target was offered and has left free is offered to another one.
func TestSlotLeftFreeIsOfferedOn(t *testing.T) {
	for name, next := range map[string]time.Duration{"nothing left": 0, "nothing due yet": time.Hour} {
		t.Run(name, func(t *testing.T) {
			d := newTestDispatcher(t)
			d.testBeat("w1", 1, "t.*")
			d.waitingTargets([]string{"t.held"})
			d.takeHungry(d.now())
			held := d.deliver(t, "w1", "t.held", "j")[0]
			d.claimedAside(held.lane, 1, 0)
			d.waitingTargets([]string{"t.a", "t.b"})
			d.resolve([]parsedAck{{ref: held.Ref()}}, d.now())
			first := listed(t, d)
			var later job.Time
			if next != 0 {
				later = d.now().Add(next)
			}
			d.wants(first)
			d.claimedAside(first, 0, later)
			if second := listed(t, d); second == first {
				t.Errorf("%s is offered the slot again", first.target)
			}
		})
	}
}

// listed returns the only lane that is to be claimed from.
func listed(t *testing.T, d *dispatcher) *lane {
	t.Helper()
	lanes, _ := d.takeHungry(d.now().Add(time.Minute))
	if len(lanes) != 1 {
		t.Fatalf("%d lanes are to be claimed from, want 1", len(lanes))
	}
	return lanes[0]
}

// A worker that two heartbeats in a row show not to hear its subject is sent
// nothing for strikeMemory, whatever it completes meanwhile.
func TestStrikes(t *testing.T) {
	d := newTestDispatcher(t)
	at := ticks(1)
	d.ticks = func() ticks { return at }
	beat := func() bool { return d.testBeat("w1", 3, "t.x").deaf }
	beat()
	d.waitingTargets([]string{"t.x"})
	l := d.lanes["t.x"]
	older := d.deliver(t, "w1", "t.x", "older")[0]
	for strike := 1; strike <= maxStrikes; strike++ {
		f := d.deliver(t, "w1", "t.x", fmt.Sprint("missed", strike))[0]
		d.undelivered(f)
		if deaf := beat(); deaf != (strike == maxStrikes) || l.directed() == deaf {
			t.Fatalf("strike %d: deaf %v, target has workers %v", strike, deaf, l.directed())
		}
	}
	d.resolve([]parsedAck{{ref: older.Ref()}}, d.now())
	at += ticks(strikeMemory / time.Microsecond)
	if beat(); l.directed() {
		t.Error("sent jobs again while its strikes count")
	}
	at++
	if beat(); !l.directed() {
		t.Error("not sent jobs again after its strikes")
	}
}

// A completion shows that the worker hears its subject, so single misses do not
// add up.
func TestStrikesInARow(t *testing.T) {
	d := newTestDispatcher(t)
	d.testBeat("w1", 3, "t.x")
	d.waitingTargets([]string{"t.x"})
	for i := range 2 * maxStrikes {
		fs := d.deliver(t, "w1", "t.x", fmt.Sprint("missed", i), fmt.Sprint("done", i))
		d.undelivered(fs[0])
		if d.testBeat("w1", 3, "t.x").deaf {
			t.Fatalf("deaf after %d jobs that it has completed", i)
		}
		d.resolve([]parsedAck{{ref: fs[1].Ref()}}, d.now())
	}
}

// The lease that a heartbeat renews may be renewed by the worker at the same time:
// what the store is told is one of the two.
func TestRenewalsDoNotMix(t *testing.T) {
	const jobs, rounds = 50, 200
	d := newTestDispatcher(t)
	b := &Bridge{cfg: Config{Now: time.Now}, disp: d, settler: newSettler()}
	d.testBeat("w1", jobs, "t.x")
	d.waitingTargets([]string{"t.x"})
	var ids []string
	for i := range jobs {
		ids = append(ids, fmt.Sprint(i))
	}
	var refs []job.Ref
	var progress []parsedAck
	for _, f := range d.deliver(t, "w1", "t.x", ids...) {
		refs = append(refs, f.Ref())
		progress = append(progress, parsedAck{ack: ack{verb: verbProgress}, ref: f.Ref()})
	}
	var at ticks // moves on so far that each renewal is due
	d.ticks = func() ticks { return at }
	m, _ := subjects.NewMatcher([]string{"t.x"})
	p := &beat{beatBody: beatBody{Worker: "w1", Subjects: []string{"t.x"}, Capacity: jobs, Directed: true}, covers: m, running: refs}
	for range rounds {
		at += ticks(time.Minute / time.Microsecond)
		var both sync.WaitGroup
		both.Go(func() { b.takeIn(p) })
		both.Go(func() { d.resolve(progress, d.now()) })
		both.Wait()
		for _, s := range b.settler.ended.take(nil) {
			if s.Outcome != job.Extend || s.At != s.until {
				t.Fatalf("outcome %v until %v, its settlement counts until %v", s.Outcome, s.At.Time(), s.until.Time())
			}
		}
	}
}

// fixedMode is a store in one mode, of which nothing else is asked.
type fixedMode struct {
	moded
}

// A peer that was without the shared store when it was heard last may hide jobs
// on its disk, also when it is gone.
func TestPeerThatIsGoneMayHideJobs(t *testing.T) {
	x := &exchange{store: fixedMode{}, peers: newStates("b1")}
	long := time.Now().Add(-2 * peerLife)
	for version, c := range []struct {
		circuit string
		hidden  bool
	}{{job.ModeLocal.Circuit(), true}, {job.ModeMigrating.Circuit(), true}, {job.ModeRedis.Circuit(), false}} {
		x.peers.learn(bridgeState{Bridge: "b2", CircuitState: c.circuit, Version: int64(version)}, long)
		if got := x.nothingHidden(); got == c.hidden {
			t.Errorf("it was %s when it was heard last: nothing hidden %v", c.circuit, got)
		}
	}
}

// A worker's job that was on its way to a target without subscribers when its first
// owning worker joined goes to that at once.
func TestJobThatReachedNobodyAsAWorkerJoined(t *testing.T) {
	d := newTestDispatcher(t)
	b := &Bridge{cfg: Config{Now: time.Now, ProbeMax: time.Hour}, disp: d}
	d.admit([]job.Delivery{testDelivery("j", "t.x", "b1")}, false)
	fs, _, _ := d.collect(d.now(), make([]*flight, 0, 1))
	if len(fs) != 1 {
		t.Fatalf("%d jobs sent, want 1", len(fs))
	}
	d.testBeat("w1", 1, "t.x")
	out := b.park(fs, noResponders)
	if len(out) != 1 || out[0].Outcome != job.SetAside || out[0].lane != fs[0].lane {
		t.Fatalf("settled as %+v, want it set aside", out)
	}
	d.settled(out)
	if l := listed(t, d); l != fs[0].lane || l.parked != notParked {
		t.Errorf("%s is to be claimed from, parked %d", l.target, l.parked)
	}
}
