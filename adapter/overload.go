package adapter

import (
	"context"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// overloadTime is how long too much must wait before it is dealt with.
	overloadTime = time.Second
	// overloadCalm is for how long the queue must have been short before the next
	// overload is given that time again.
	overloadCalm = 10 * time.Second
	// The pauses between two looks at the queue: ordinary, and while it is filling.
	overloadLook, overloadLookBusy = 10 * time.Millisecond, time.Millisecond
)

// What an overload asks for.
type relief uint8

const (
	noRelief relief = iota
	spillSome
	refuseSome
)

// overload decides what is to be done about a queue that the store does not
// empty in time. Times are an input.
//
// Over 95 % for a second is an overload: from then on, until it has been below
// 90 % for ten seconds, what is above 90 % goes elsewhere. A queue that is about
// to be full before that second is over gets room at once, for what does not fit
// would be dropped without an answer.
type overload struct {
	size  int       // of the queue
	over  time.Time // since when it is over 95 %; zero: it is not
	until time.Time // while this is ahead, an overload lasts
}

// look is told how much waits, and says what is to be done until the next look.
func (o *overload) look(n int, now time.Time) relief {
	switch {
	case n <= o.size*95/100:
		o.over = time.Time{}
	case o.over.IsZero():
		o.over = now
	}
	if !o.over.IsZero() && now.Sub(o.over) >= overloadTime {
		o.until = now.Add(overloadCalm)
	}
	switch {
	case now.Before(o.until) && n > o.size*90/100:
		o.until = now.Add(overloadCalm)
		return spillSome
	case n > o.size*98/100:
		return refuseSome
	}
	return noRelief
}

// lasts reports whether an overload is not over yet.
func (o *overload) lasts(now time.Time) bool { return now.Before(o.until) }

func (o *overload) filling(n int) bool { return n > o.size/2 }

// relieve keeps the queue from running full while the store is too slow, until
// stop is closed: messages go to this bridge's disk, or are refused early rather
// than let producers wait in vain.
func (in *intake) relieve(ctx context.Context, stop <-chan struct{}) {
	timer := time.NewTimer(overloadLook)
	defer timer.Stop()
	o := overload{size: cap(in.msgs)}
	batch := &intakeMsgs{b: in.b}
	local, _ := in.b.store.(spiller)
	for {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		todo := o.look(len(in.msgs), time.Now())
		in.overloaded.Store(todo != noRelief || o.lasts(time.Now()))
		for ; todo != noRelief; todo = o.look(len(in.msgs), time.Now()) {
			select {
			case m := <-in.msgs:
				if todo == spillSome && local != nil {
					batch.handle(ctx, m, in.msgs, spillOf(local))
				} else {
					err := in.overloadError()
					in.b.tracing.refused(m, err)
					in.b.reject(m, err)
				}
			default:
			}
		}
		timer.Reset(overloadLook)
		if o.filling(len(in.msgs)) {
			timer.Reset(overloadLookBusy)
		}
	}
}

// spillOf puts jobs on this bridge's disk; that it cannot take them is overload.
func spillOf(local spiller) putFunc {
	return func(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
		res, err := local.PutLocal(ctx, jobs)
		if err != nil {
			err = job.ErrFull.With("intake overloaded, and this bridge's disk cannot take it: %v; try again later", err)
		}
		return res, err
	}
}

func (in *intake) overloadError() *job.Error {
	return job.ErrFull.With("intake overloaded: more than 95 %% of the %d messages that may wait (%s) do; try again later", cap(in.msgs), keyIntakeQueue)
}
