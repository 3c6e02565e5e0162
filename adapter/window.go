package adapter

import "slices"

// windowStart is the size of a new window: large enough that two or three
// rounds of acknowledgements open it for a fast worker, small enough that a
// slow one gets no more than it can settle within its lease.
const windowStart = 16

// window bounds the unsettled deliveries of one lane. It grows by one with
// each settlement while the oldest unsettled delivery is younger than a third
// of its ack wait, and halves when a lease runs out: a worker that needs
// 100 ms a job is then never sent more than it can settle in time.
//
// A nil window counts nothing: the slots of workers that own their jobs count
// instead.
type window struct {
	limit    int
	size     int
	inFlight int
	early    int     // deliveries in dispatcher.heap
	halved   ticks   // when a lease ran out last
	order    []aged  // unsettled deliveries by age; those that ended are dropped lazily
	queue    []*lane // lanes with jobs set aside, in the order in which they get room
}

// aged is a delivery with the time from which its age counted when it was
// queued; a renewed lease makes it younger.
type aged struct {
	f     *flight
	since ticks
}

func newWindow(limit int) *window {
	return &window{limit: limit, size: min(windowStart, limit)}
}

func (w *window) room() int { return w.size - w.inFlight }

// sent counts f, which is being published now.
func (w *window) sent(f *flight) {
	if w == nil {
		return
	}
	if len(w.order) > 2*w.inFlight+windowStart {
		// One delivery that takes long must not keep all that ended since.
		w.order = slices.DeleteFunc(w.order, func(a aged) bool { return a.f.gone })
	}
	w.inFlight++
	w.order = append(w.order, aged{f, f.since})
}

// settled counts a delivery that a worker ended.
func (w *window) settled(at ticks) {
	if w == nil {
		return
	}
	w.inFlight--
	f := w.oldest()
	if w.size < w.limit && (f == nil || at.sub(f.since) < f.AckWait/3) {
		w.size++
	}
}

// expired counts a delivery whose lease ran out. Of those that ran out together
// only the first halves the window: the others were sent into the same one.
func (w *window) expired(f *flight, at ticks) {
	if w == nil {
		return
	}
	w.inFlight--
	if f.since >= w.halved {
		w.size, w.halved = max(1, w.size/2), at
	}
}

// returned counts a delivery that reached no worker.
func (w *window) returned() {
	if w != nil {
		w.inFlight--
	}
}

// oldest returns the unsettled delivery whose age counts longest, or nil.
func (w *window) oldest() *flight {
	for len(w.order) > 0 {
		a := w.order[0]
		if !a.f.gone && a.f.since == a.since {
			return a.f
		}
		w.order[0] = aged{}
		w.order = w.order[1:]
		if !a.f.gone {
			w.order = append(w.order, aged{a.f, a.f.since})
		}
	}
	w.order = nil
	return nil
}
