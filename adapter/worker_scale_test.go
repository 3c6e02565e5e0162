package adapter

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// everyone is a dispatcher with n targets that have jobs set aside, n workers that
// cover all of them, and no free slot left.
func everyone(t *testing.T, n int) *dispatcher {
	d := newTestDispatcher(t)
	targets := make([]string, n)
	for i := range targets {
		targets[i] = fmt.Sprint("t.", i)
		d.testBeat(fmt.Sprint("w", i), 1, "t.>")
	}
	d.waitingTargets(targets)
	hungry, _ := d.takeHungry(d.now())
	l := hungry[0]
	free, slots, _ := d.wants(l)
	if len(hungry) != n || free != n {
		t.Fatalf("%d lanes listed and %d slots free, want %d", len(hungry), free, n)
	}
	ds := make([]job.Delivery, n)
	for i := range ds {
		ds[i] = testDelivery(fmt.Sprint("j", i), l.target, slots[i].Owner)
	}
	d.admit(ds, true)
	if batch, _, _ := d.collect(d.now(), make([]*flight, 0, n)); len(batch) != n {
		t.Fatalf("%d jobs sent, want %d", len(batch), n)
	}
	d.claimedAside(l, n, d.now())
	for _, l := range hungry[1:] {
		d.wants(l)
	}
	return d
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

// With 1,000 workers for each of 1,000 targets, what one of them causes does not
// cost much more than to look at each worker for each target, which is measured
// beside it, and again when something else had the processor meanwhile, so that the
// bounds hold on any machine.
func TestThousandsOfWorkersAndTargets(t *testing.T) {
	const n = 1000
	d := everyone(t, n)
	free := 0
	look := func() {
		for _, l := range d.lanes {
			for _, w := range l.workers {
				free += w.free()
			}
		}
	}
	if look(); free != 0 {
		t.Fatalf("%d slots are free", free)
	}
	for _, c := range []struct {
		what string
		f    func(try int)
		most float64 // looks
	}{
		{"all targets want a slot", func(int) {
			for _, l := range d.lanes {
				d.wants(l)
			}
		}, 12},
		{"a worker goes", func(try int) { d.giveUp(fmt.Sprint("w", n-1-try)) }, 3},
		{"a job is settled", func(try int) {
			f := d.flights[fmt.Sprint("j", try)]
			d.resolve([]parsedAck{{ref: f.Ref()}}, d.now())
		}, 0.25},
		{"a worker joins", func(try int) { d.testBeat(fmt.Sprint("extra", try), 1, "t.>") }, 1},
	} {
		least := math.Inf(1)
		for try := 0; try < 20 && least > c.most; try++ {
			one := timed(look)
			least = min(least, float64(timed(func() { c.f(try) }))/float64(one))
		}
		if least > c.most {
			t.Errorf("%s: costs %.3g looks, want at most %v", c.what, least, c.most)
		} else {
			t.Logf("%s: %.3g looks of %v", c.what, least, c.most)
		}
	}
}
