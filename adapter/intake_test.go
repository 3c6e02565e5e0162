package adapter_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestConflicts(t *testing.T) {
	r := newRig(t)
	work := r.worker("orders.x")
	r.schedule("delay.in.0s.orders.x", "p", "Nats-Msg-Id", "a")
	m := receive(t, work)
	r.refused(job.ErrConflict, message("delay.in.1s.orders.x", "q", "Nats-Msg-Id", "a", "Delay-Replace", "true"))
	r.refused(job.ErrConflict, message("delay.in.1s.billing.x", "q", "Nats-Msg-Id", "a"))
	r.refused(job.ErrConflict, message("delay.in.1s.billing.x", "q", "Nats-Msg-Id", "a", "Delay-Replace", "true"))
	r.done(m)
	if got := r.state("a"); got.State != job.Done {
		t.Errorf("state %q", got.State)
	}
}

func TestStoreFull(t *testing.T) {
	r := newRig(t, withStore(memdelay.New(memdelay.Options{MaxJobs: 3})))
	ids := r.scheduleAll(3, always("delay.in.1h.t.x"), always("p"))
	r.refused(job.ErrFull, message("delay.in.1h.t.x", "p"))
	if _, err := r.store.Cancel(t.Context(), 0, job.ByIDs(ids[:1]...)); err != nil {
		t.Fatal(err)
	}
	r.schedule("delay.in.1h.t.x", "p")
}

// TestIntakeOverload lets messages pile up behind a store call that hangs.
func TestIntakeOverload(t *testing.T) {
	const queue = 400
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	entered, release := make(chan struct{}, 1), make(chan struct{})
	store.put = func(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-release
		return store.Store.Put(ctx, jobs)
	}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) { c.IntakeQueue, c.StoreTimeout = queue, time.Minute }))
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox)
	publish := func(n int) {
		for range n {
			if err := r.nc.PublishRequest("delay.in.1h.t.x", inbox, nil); err != nil {
				t.Fatal(err)
			}
		}
		r.flush()
	}
	publish(1)
	<-entered
	publish(queue)
	r.intakeArrived()
	full, stored := 0, 0
	for i := range queue + 1 {
		a := decodeAck(t, receive(t, replies))
		if i == 0 {
			close(release) // only now, so that the overload is seen
		}
		switch {
		case a.Error == nil:
			stored++
		case a.Error.ErrCode == job.ErrFull.ErrCode && a.Error.Code == job.ErrFull.Code:
			full++
		default:
			t.Fatalf("refused with %+v", *a.Error)
		}
	}
	if full == 0 || stored == 0 {
		t.Errorf("%d refused as overload, %d stored; want some of both", full, stored)
	}
	r.schedule("delay.in.1h.t.x", "p")
}

// TestIntakeOverloadWhileTheStoreHangs: each message beyond those that may wait
// gets one of them refused at once, not when the store is done.
func TestIntakeOverloadWhileTheStoreHangs(t *testing.T) {
	const queue, most, beyond = 200, 196, 30
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	entered, release := make(chan struct{}), make(chan struct{})
	var first sync.Once
	store.put = func(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
		first.Do(func() { close(entered) })
		<-release
		return store.Store.Put(ctx, jobs)
	}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) { c.IntakeQueue, c.StoreTimeout = queue, time.Minute }))
	releaseOnce := sync.OnceFunc(func() { close(release) })
	t.Cleanup(releaseOnce)
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox)
	publish := func() {
		if err := r.nc.PublishRequest("delay.in.1h.t.x", inbox, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	<-entered
	for range most {
		publish()
	}
	r.intakeArrived()
	nothing(t, replies)
	for range beyond {
		start := time.Now()
		publish()
		if a := decodeAck(t, receive(t, replies)); a.Error == nil || a.Error.ErrCode != job.ErrFull.ErrCode || a.Error.Code != job.ErrFull.Code {
			t.Fatalf("answered %+v", a)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("refused after %v", took)
		}
	}
	releaseOnce()
	for range most + 1 { // of those that waited some are refused when this has taken a second
		if a := decodeAck(t, receive(t, replies)); a.Error != nil && a.Error.ErrCode != job.ErrFull.ErrCode {
			t.Fatalf("one that may wait was refused: %+v", *a.Error)
		}
	}
}

func TestStoreUnavailable(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.put = func(context.Context, []job.Job) ([]job.PutResult, error) { return nil, errors.New("broken") }
	r := newRig(t, withStore(store))
	r.refused(job.ErrUnavailable, message("delay.in.1h.t.x", "p"))
}

func TestStoreTooSlow(t *testing.T) {
	store := &faultStore{Store: memdelay.New(memdelay.Options{})}
	store.put = func(ctx context.Context, _ []job.Job) ([]job.PutResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) { c.StoreTimeout = 50 * time.Millisecond }))
	r.refused(job.ErrUnavailable, message("delay.in.1h.t.x", "p"))
}

func TestDurabilityNotOffered(t *testing.T) {
	r := newRig(t)
	r.refused(job.ErrUnavailable, message("delay.in.1h.t.x", "p", "Delay-Durability", "local"))
	r.storesNothing()
}

func TestPubAck(t *testing.T) {
	r := newRig(t)
	a := r.schedule("delay.in.1h.t.x", "p", "Nats-Msg-Id", "first")
	if a.Stream != "DELAY" || a.Seq == 0 || a.Duplicate || a.ID != "first" || a.Stored != "memory" || a.Due.IsZero() {
		t.Errorf("answer %+v", a)
	}

	legacy, err := r.nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	last := a.Seq
	for i, duplicate := range []bool{false, true} {
		p, err := legacy.Publish("delay.in.1h.t.x", nil, nats.MsgId("legacy"), nats.ExpectStream("DELAY"))
		if err != nil || p.Stream != "DELAY" || p.Sequence <= last || p.Duplicate != duplicate {
			t.Fatalf("legacy %d: %+v, error %v", i, p, err)
		}
		last = p.Sequence
		q, err := js.Publish(t.Context(), "delay.in.1h.t.x", nil, jetstream.WithMsgID("js"), jetstream.WithExpectStream("DELAY"))
		if err != nil || q.Stream != "DELAY" || q.Sequence <= last || q.Duplicate != duplicate {
			t.Fatalf("jetstream %d: %+v, error %v", i, q, err)
		}
		last = q.Sequence
	}
	future, err := js.PublishAsync("delay.in.1h.t.x", nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-future.Ok():
		if p.Sequence <= last {
			t.Errorf("asynchronous: %+v", p)
		}
	case err := <-future.Err():
		t.Errorf("asynchronous: %v", err)
	case <-time.After(patient):
		t.Error("asynchronous: no answer")
	}
}

// TestBadJobsNeverHurtTheirBatch publishes good and bad jobs in turn, without
// waiting, so that they share batches.
func TestBadJobsNeverHurtTheirBatch(t *testing.T) {
	r := newRig(t, withStore(memdelay.New(memdelay.Options{})))
	bad := []*nats.Msg{
		message("delay.in.never.t.x", "bad"),
		message("delay.in.1s.$SYS.x", "bad"),
		message("delay.in.1s.t.x", "bad", "Delay-Max-Attempts", "x"),
		message("delay.in.1s.other.x", "bad", "Nats-Msg-Id", "taken"),
	}
	r.schedule("delay.in.1h.t.x", "p", "Nats-Msg-Id", "taken")
	work := r.worker("t.x")
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox + ".*")
	const n = 600
	for i := range n {
		m := message("delay.in.0s.t.x", "good")
		if i%3 == 1 {
			m = bad[i/3%len(bad)]
		}
		m.Reply = fmt.Sprintf("%s.%d", inbox, i)
		if err := r.nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	good := map[string]bool{}
	for range n {
		m := receive(t, replies)
		i, err := strconv.Atoi(strings.TrimPrefix(m.Subject, inbox+"."))
		if err != nil {
			t.Fatal(err)
		}
		a := decodeAck(t, m)
		if refused := a.Error != nil; refused != (i%3 == 1) {
			t.Fatalf("message %d: %s", i, m.Data)
		}
		if a.Error == nil {
			good[a.ID] = true
		}
	}
	for range n / 3 * 2 {
		m := receive(t, work)
		if id := m.Header.Get("Delay-Job-Id"); !good[id] {
			t.Fatalf("delivered %q %q, which is not one of those stored or came twice", id, m.Data)
		} else {
			delete(good, id)
		}
		m.Ack()
	}
}

func TestRefusalWithoutReplyIsAnEvent(t *testing.T) {
	r := newRig(t)
	all := r.listen(">")
	if err := r.nc.Publish("delay.in.soon.t.x", []byte("p")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		switch m := receive(t, all); m.Subject {
		case "delay.in.soon.t.x":
		case "delay.event.rejected":
			var e struct {
				Bridge, Subject string
				Error           pubError
			}
			if err := json.Unmarshal(m.Data, &e); err != nil || e.Bridge != "b1" || e.Subject != "delay.in.soon.t.x" ||
				e.Error.Code != 400 || e.Error.ErrCode != 10189 || e.Error.Description == "" {
				t.Errorf("event %s", m.Data)
			}
		default:
			t.Errorf("published on %s: %s", m.Subject, m.Data)
		}
	}
	// Answers leave the bridge in order: after this one nothing is on its way.
	r.schedule("delay.in.1h.t.x", "p")
	got := []string{receive(t, all).Subject, receive(t, all).Subject}
	if got[0] != "delay.in.1h.t.x" || !strings.HasPrefix(got[1], "_INBOX.") {
		t.Errorf("then published on %q", got)
	}
	nothing(t, all)
}

// TestNoAnswerToReservedSubjects asks for answers where they could do harm.
func TestNoAnswerToReservedSubjects(t *testing.T) {
	r := newRig(t)
	all := r.listen(">")
	replies := []string{"$KV.x", "$SYS.REQ.x", "delay", "delay.in.0s.t.evil", "delay.event.dead"}
	var want []string
	for _, reply := range replies {
		for _, subject := range []string{"delay.in.1h.t.x", "delay.in.soon.t.x"} {
			if err := r.nc.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
			want = append(want, subject)
		}
		want = append(want, "delay.event.rejected") // instead of the refusal
	}
	r.schedule("delay.in.1h.t.last", "p")
	var got []string
	for {
		m := receive(t, all)
		if strings.HasPrefix(m.Subject, "_INBOX.") {
			break
		}
		if m.Subject != "delay.in.1h.t.last" {
			got = append(got, m.Subject)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("published on %q, want %q", got, want)
	}
}
