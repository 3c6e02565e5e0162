package adapter

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// windowRig drives a window with deliveries whose ack wait is 300 ms.
type windowRig struct {
	w   *window
	now ticks
}

const (
	windowAckWait = 300 * time.Millisecond
	young         = windowAckWait/3 - time.Millisecond
	old           = windowAckWait / 3
)

func (r *windowRig) send(n int) (fs []*flight) {
	for range n {
		f := &flight{Delivery: job.Delivery{Job: job.Job{AckWait: windowAckWait}}, since: r.now, sent: true}
		r.w.sent(f)
		fs = append(fs, f)
	}
	return fs
}

func (r *windowRig) settle(fs ...*flight) {
	for _, f := range fs {
		f.gone = true
		r.w.settled(r.now)
	}
}

func (r *windowRig) later(d time.Duration) { r.now += ticks(d / time.Microsecond) }

func (r *windowRig) want(t *testing.T, size, inFlight int) {
	t.Helper()
	if r.w.size != size || r.w.inFlight != inFlight || r.w.room() != size-inFlight {
		t.Fatalf("size %d, in flight %d, room %d; want %d, %d, %d", r.w.size, r.w.inFlight, r.w.room(), size, inFlight, size-inFlight)
	}
}

func newWindowRig(limit int) *windowRig { return &windowRig{newWindow(limit), 1_000_000} }

func TestWindowStartsWithinItsLimit(t *testing.T) {
	newWindowRig(1000).want(t, windowStart, 0)
	newWindowRig(3).want(t, 3, 0)
}

func TestWindowGrowsWhileTheOldestIsYoung(t *testing.T) {
	r := newWindowRig(1000)
	fs := r.send(10)
	r.later(young)
	r.settle(fs[1:6]...)
	r.want(t, windowStart+5, 5)
	// From now on the oldest has waited for a third of its ack wait.
	r.later(old - young)
	r.settle(fs[6:9]...)
	r.want(t, windowStart+5, 2)
	// Once it is settled, the next oldest counts, which is as old.
	r.settle(fs[0])
	r.want(t, windowStart+5, 1)
	// Younger ones do not hide it.
	r.send(5)
	r.settle(r.send(1)...)
	r.want(t, windowStart+5, 6)
	// Without it the window grows again.
	r.settle(fs[9])
	r.want(t, windowStart+6, 5)
}

func TestWindowGrowsUpToItsLimit(t *testing.T) {
	r := newWindowRig(windowStart + 2)
	r.settle(r.send(10)...)
	r.want(t, windowStart+2, 0)
}

// TestWindowHalvesWhenALeaseRunsOut halves once for all that were sent before it
// was halved, and again for what was sent since.
func TestWindowHalvesWhenALeaseRunsOut(t *testing.T) {
	r := newWindowRig(1000)
	for _, size := range []int{windowStart / 2, windowStart / 4, 2, 1, 1, 1} {
		fs := r.send(3)
		r.later(old)
		for len(fs) > 0 {
			fs[0].gone = true
			r.w.expired(fs[0], r.now)
			fs = fs[1:]
			r.want(t, size, len(fs))
		}
	}
}

func TestWindowKeepsItsSizeForWhatReachedNobody(t *testing.T) {
	r := newWindowRig(1000)
	r.send(3)
	r.w.returned()
	r.want(t, windowStart, 2)
}

func TestRenewedLeaseMakesADeliveryYounger(t *testing.T) {
	r := newWindowRig(1000)
	a, b := r.send(1)[0], r.send(1)[0]
	r.later(old)
	a.since = r.now
	if got := r.w.oldest(); got != b {
		t.Fatalf("the oldest is %+v, want the one that was not renewed", got)
	}
	b.since = r.now
	c := r.send(1)[0]
	r.settle(c)
	r.want(t, windowStart+1, 2)
	// Renewals that are not seen at once are seen when they matter.
	r.later(old)
	b.since = r.now
	if got := r.w.oldest(); got != a {
		t.Fatalf("the oldest is %+v, want the one renewed first", got)
	}
	r.settle(a, b)
	if got := r.w.oldest(); got != nil || r.w.order != nil {
		t.Fatalf("the oldest of none is %+v, %d kept", got, len(r.w.order))
	}
}

// TestWindowForgetsWhatEnded sends many beside one delivery that takes long.
func TestWindowForgetsWhatEnded(t *testing.T) {
	r := newWindowRig(1000)
	slow := r.send(1)[0]
	for range 10_000 {
		r.settle(r.send(1)...)
	}
	if n := len(r.w.order); n > 100 {
		t.Errorf("%d deliveries kept for one in flight", n)
	}
	if got := r.w.oldest(); got != slow {
		t.Errorf("the oldest is %+v, want the slow one", got)
	}
}
