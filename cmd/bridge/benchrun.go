package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// measurePlain measures plain request-reply with a responder in a process of
// its own: what an answered message costs at least.
func (b *bench) measurePlain(ctx context.Context) (err error) {
	b.plainRate, err = b.waiting(ctx, max(b.o.jobs/2, 1000), func(int) *nats.Msg { return &nats.Msg{Subject: b.plain, Data: b.payload} })
	return err
}

// waiting sends n messages from producers that each wait for the answer, and
// returns the rate.
func (b *bench) waiting(ctx context.Context, n int, message func(int) *nats.Msg) (float64, error) {
	var next atomic.Int64
	var failed error
	var once sync.Once
	var producers sync.WaitGroup
	began := time.Now()
	for range benchProducers {
		producers.Go(func() {
			for i := int(next.Add(1)); i <= n && ctx.Err() == nil; i = int(next.Add(1)) {
				reply, err := b.nc.RequestMsg(message(i), benchIdle)
				if err == nil {
					err = refusal(reply)
				}
				if err != nil {
					once.Do(func() { failed = err })
					return
				}
			}
		})
	}
	producers.Wait()
	if failed == nil {
		failed = ctx.Err()
	}
	return float64(n) / time.Since(began).Seconds(), failed
}

// refusal returns the error that a bridge answered with.
func refusal(reply *nats.Msg) error {
	if reply.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	if reply.Header.Get("Nats-Service-Error-Code") != "" {
		return fmt.Errorf("refused: %s", reply.Header.Get("Nats-Service-Error"))
	}
	return nil
}

// pipelined sends n messages with a window of answers outstanding, and returns
// the rate.
func (b *bench) pipelined(ctx context.Context, n int, message func(int) *nats.Msg) (float64, error) {
	window := make(chan struct{}, benchWindow)
	failed := make(chan error, 1)
	inbox := b.nc.NewInbox()
	sub, err := b.nc.Subscribe(inbox, func(m *nats.Msg) {
		if err := refusal(m); err != nil {
			select {
			case failed <- err:
			default: // the first one is reported
			}
		}
		<-window
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	idle := time.NewTimer(benchIdle)
	defer idle.Stop()
	began := time.Now()
	// After the last message the window is filled up once more: then every
	// answer is there.
	for i := range n + benchWindow {
		idle.Reset(benchIdle)
		select {
		case window <- struct{}{}:
		case err := <-failed:
			return 0, err
		case <-idle.C:
			return 0, errors.New("answers are missing")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if i >= n {
			continue
		}
		m := message(i + 1)
		m.Reply = inbox
		if err := b.nc.PublishMsg(m); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// intake measures how fast jobs are taken, then lets them be delivered.
func (b *bench) intake(ctx context.Context) error {
	sink, err := b.work(3 * b.o.jobs)
	if err != nil {
		return err
	}
	defer sink.stop()
	subject := b.prefix + ".in." + drainIn.String() + "." + b.target
	plain := func(int) *nats.Msg { return &nats.Msg{Subject: subject, Data: b.payload} }
	unique := job.NewID(0)
	named := func(i int) *nats.Msg {
		return &nats.Msg{Subject: subject, Data: b.payload, Header: nats.Header{"Nats-Msg-Id": {unique + "-" + strconv.Itoa(i)}}}
	}
	for _, mode := range []struct {
		name string
		send func(context.Context, int, func(int) *nats.Msg) (float64, error)
		msg  func(int) *nats.Msg
	}{
		{"intake-waiting", b.waiting, plain},
		{"intake-pipelined", b.pipelined, plain},
		{"intake-ids", b.pipelined, named},
	} {
		rate, err := mode.send(ctx, b.o.jobs, mode.msg)
		if err != nil {
			return err
		}
		b.report(measurement{Scenario: mode.name, Jobs: b.o.jobs, Rate: rate})
	}
	return sink.wait(ctx)
}

// burst measures many jobs that are due at one instant.
func (b *bench) burst(ctx context.Context) error {
	sink, err := b.work(b.o.jobs)
	if err != nil {
		return err
	}
	defer sink.stop()
	due := time.Now().Add(2*time.Second + time.Duration(b.o.jobs)*time.Second/20_000).Truncate(time.Millisecond)
	subject := b.prefix + ".at." + strconv.FormatInt(due.UnixMilli(), 10) + "." + b.target
	if _, err := b.pipelined(ctx, b.o.jobs, func(int) *nats.Msg { return &nats.Msg{Subject: subject, Data: b.payload} }); err != nil {
		return err
	}
	if time.Now().After(due) {
		return errors.New("the jobs were due before all were stored: use fewer --jobs")
	}
	if err := sink.wait(ctx); err != nil {
		return err
	}
	late := sink.late
	seconds := late[len(late)-1].Seconds()
	b.report(measurement{Scenario: "burst", Jobs: b.o.jobs, Rate: float64(b.o.jobs) / seconds, First: ms(late[0]), Early: sink.early()})
	return nil
}

// steady measures the lateness of jobs that are due at random times.
func (b *bench) steady(ctx context.Context) error {
	n := int(b.o.duration.Seconds() * float64(b.o.rate))
	sink, err := b.work(n)
	if err != nil {
		return err
	}
	defer sink.stop()
	began := time.Now()
	const step = 10 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for sent := 0; sent < n; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for want := min(n, int(time.Since(began).Seconds()*float64(b.o.rate))); sent < want; sent++ {
			due := time.Now().Add(time.Second + rand.N(2*time.Second))
			m := &nats.Msg{Subject: b.prefix + ".to." + b.target, Data: b.payload, Header: nats.Header{"Delay-At": {due.UTC().Format(time.RFC3339Nano)}}}
			if err := b.nc.PublishMsg(m); err != nil {
				return err
			}
		}
	}
	if err := sink.wait(ctx); err != nil {
		return err
	}
	slices.Sort(sink.late)
	at := func(share float64) float64 { return ms(sink.late[int(share*float64(n-1))]) }
	b.report(measurement{Scenario: "steady", Jobs: n, Rate: float64(b.o.rate), P50: at(.5), P99: at(.99), Max: at(1), Early: sink.early()})
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sink is a worker that acknowledges at once, and notes how late jobs came.
type sink struct {
	nc   *nats.Conn
	late []time.Duration // in the order of arrival
	got  atomic.Int64
	all  chan struct{}
	want int
}

// work starts a worker, on a connection of its own, that expects n jobs.
func (b *bench) work(n int) (*sink, error) {
	nc, err := b.dialAgain()
	if err != nil {
		return nil, err
	}
	s := &sink{nc: nc, late: make([]time.Duration, 0, n), all: make(chan struct{}), want: n}
	sub, err := nc.QueueSubscribe(b.target, benchGroup, s.handle)
	if err == nil {
		err = errors.Join(sub.SetPendingLimits(-1, -1), nc.FlushTimeout(connectTimeout))
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return s, nil
}

// dialAgain opens another connection like the first.
func (b *bench) dialAgain() (*nats.Conn, error) { return b.nc.Opts.Connect() }

func (s *sink) handle(m *nats.Msg) {
	now := time.Now()
	_ = m.Respond(nil) // unanswered, the job comes again, and is counted once too often
	due, err := time.Parse(time.RFC3339Nano, m.Header.Get("Delay-Due"))
	if err != nil || len(m.Data) == 0 {
		return // the job that asked whether there is a bridge
	}
	if len(s.late) == s.want {
		return
	}
	s.late = append(s.late, now.Sub(due))
	if s.got.Add(1) == int64(s.want) {
		close(s.all)
	}
}

// wait returns when all jobs have come, or none comes any more.
func (s *sink) wait(ctx context.Context) error {
	for before := int64(-1); ; before = s.got.Load() {
		select {
		case <-s.all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(benchIdle):
			if s.got.Load() == before {
				return fmt.Errorf("%d of %d jobs delivered, and no more for %v", before, s.want, benchIdle)
			}
		}
	}
}

func (s *sink) early() (n int) {
	for _, d := range s.late {
		if d < 0 {
			n++
		}
	}
	return n
}

// stop lets acknowledgements out and closes the connection.
func (s *sink) stop() {
	_ = s.nc.FlushTimeout(connectTimeout) // what is not acknowledged comes again
	s.nc.Close()
}
