package adapter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
)

// owner is a worker that owns its jobs, with a connection of its own, driven by
// the test: it says only what it is told to.
type owner struct {
	t        *testing.T
	nc       *nats.Conn
	name     string
	subjects []string
	capacity int
	directed bool
	jobs     chan *nats.Msg // on its own subject
	pings    atomic.Int64
	deaf     atomic.Bool // it does not answer pings
}

// owner connects a worker that has not said anything yet.
func (r *rig) owner(name string, capacity int, subjects ...string) *owner {
	r.t.Helper()
	w := &owner{t: r.t, nc: connect(r.t, r.srv.URL(), r.cfg.client...), name: name, subjects: subjects, capacity: capacity, directed: true, jobs: make(chan *nats.Msg, 10000)}
	w.hear("delay.job."+name, func(m *nats.Msg) { w.jobs <- m })
	w.hear("delay.ping."+name, func(m *nats.Msg) {
		w.pings.Add(1)
		if !w.deaf.Load() {
			_ = m.Respond(nil) // a connection that is gone shows elsewhere
		}
	})
	w.flush()
	return w
}

func (w *owner) hear(subject string, f nats.MsgHandler) {
	w.t.Helper()
	if _, err := w.nc.Subscribe(subject, f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *owner) flush() {
	w.t.Helper()
	if err := w.nc.FlushTimeout(patient); err != nil {
		w.t.Fatal(err)
	}
}

// token returns the token of a delivery.
func token(m *nats.Msg) string { return m.Header.Get("Delay-Token") }

func tokens(ms ...*nats.Msg) []string {
	out := []string{}
	for _, m := range ms {
		out = append(out, token(m))
	}
	return out
}

// body is what the worker says of itself.
func (w *owner) body(running, done []string) map[string]any {
	return map[string]any{
		"worker": w.name, "queue": "q", "subjects": w.subjects, "capacity": w.capacity,
		"free": max(0, w.capacity-len(running)), "directed": w.directed, "running": running, "done": done,
	}
}

// say sends a heartbeat or a farewell and returns what is stale.
func (w *owner) say(kind string, running, done []string) []string {
	w.t.Helper()
	data, err := json.Marshal(w.body(running, done))
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := w.nc.Request("delay."+kind+"."+w.name, data, patient)
	if err != nil {
		w.t.Fatalf("%s of %s: %v", kind, w.name, err)
	}
	var answer struct {
		Stale []string
		Error *pubError
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error != nil || answer.Stale == nil {
		w.t.Fatalf("%s of %s answered %q", kind, w.name, m.Data)
	}
	return answer.Stale
}

func (w *owner) beat(running ...*nats.Msg) []string {
	w.t.Helper()
	return w.say("hb", tokens(running...), nil)
}

// beating has w send a heartbeat, listing what it runs, every 20 ms until the
// test or the returned function ends it.
func (w *owner) beating(running ...*nats.Msg) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	data, _ := json.Marshal(w.body(tokens(running...), nil)) // strings and numbers cannot fail
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = w.nc.Publish("delay.hb."+w.name, data) // a connection that is gone shows elsewhere
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			close(quit)
			<-ended
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *owner) request(m *nats.Msg, body string) string {
	w.t.Helper()
	reply, err := w.nc.Request(m.Reply, []byte(body), patient)
	if err != nil {
		w.t.Fatalf("%q: %v", body, err)
	}
	return string(reply.Data)
}

// longSuspicion is a number of pings in whose time a worker that can be believed
// gone is gone several times over.
const longSuspicion = 25

// pinged waits for n more pings.
func (w *owner) pinged(n int64) {
	w.t.Helper()
	before := w.pings.Load()
	eventually(w.t, "pings of "+w.name, func() bool { return w.pings.Load() >= before+n })
}

// busy returns a worker that holds a job of target.
func (r *rig) busy(name, target string) *owner {
	r.t.Helper()
	w := r.owner(name, 1, target)
	w.beat()
	r.schedule("delay.in.0s."+target, "p")
	receive(r.t, w.jobs)
	return w
}

// fast keeps accounts of workers at a pace for tests.
func fast(c *adapter.Config) {
	c.WorkerTTL, c.WorkerPing, c.Drain = time.Hour, 20*time.Millisecond, 10*time.Millisecond
}

func TestJobsAreSentToAWorker(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w := r.owner("w1", 2, "t.*")
	owners := r.listen("delay.owner.w1")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	if string(m.Data) != "p" || m.Header.Get("Delay-Target") != "t.x" || m.Header.Get("Delay-Job-Id") != a.ID {
		t.Errorf("got %q with %v", m.Data, m.Header)
	}
	if got := r.state(a.ID); got.Owner != "b1/w1" || got.State != job.Running {
		t.Errorf("the store has %s, owned by %q", got.State, got.Owner)
	}
	claimed := receive(t, owners)
	if want := fmt.Sprintf(`{"event":"claimed","job":%q,"token":%q,"attempt":1,"bridge":"b1"}`, a.ID, token(m)); string(claimed.Data) != want {
		t.Errorf("owner told as %s, want %s", claimed.Data, want)
	}
	if claimed.Header.Get("traceparent") != m.Header.Get("traceparent") || claimed.Header.Get("traceparent") == "" {
		t.Errorf("owner told with %v", claimed.Header)
	}
	if stale := w.beat(m); len(stale) != 0 {
		t.Errorf("stale: %v", stale)
	}
	r.done(m)
	if released := receive(t, owners); !strings.Contains(string(released.Data), `"released"`) || !strings.Contains(string(released.Data), token(m)) {
		t.Errorf("owner told as %s, want released", released.Data)
	}
	if stale := w.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("a job that is done is not stale: %v", stale)
	}
	nothing(t, plain)
}

func TestCapacitiesAreKept(t *testing.T) {
	const jobs = 300
	r := newRig(t, withConfig(fast))
	var ws []*owner
	for _, capacity := range []int{1, 10, 100} {
		w := r.owner(fmt.Sprint("w", capacity), capacity, "t.>")
		w.beat()
		ws = append(ws, w)
	}
	ids := r.scheduleAll(jobs, always("delay.in.0s.t.x"), always("p"))
	var held [][]*nats.Msg
	for _, w := range ws {
		var got []*nats.Msg
		for range w.capacity {
			got = append(got, receive(t, w.jobs))
		}
		held = append(held, got)
	}
	var all []*nats.Msg
	for len(all) < jobs {
		for i, w := range ws {
			if len(held[i]) == 0 {
				continue
			}
			nothing(t, w.jobs) // more than its capacity
			m := held[i][0]
			held[i] = held[i][1:]
			r.done(m)
			if all = append(all, m); jobs-len(all) >= 111 {
				held[i] = append(held[i], receive(t, w.jobs)) // the slot is used again
			} else if jobs-len(all) == 110 {
				for k, w := range ws { // what is left is in their hands
					held[k] = append(held[k], drain(w.jobs)...)
				}
			}
		}
	}
	firstAttempts(t, ids, all)
}

func drain(ch <-chan *nats.Msg) (ms []*nats.Msg) {
	for len(ch) > 0 {
		ms = append(ms, <-ch)
	}
	return ms
}

func TestWorkerThatJoinsGetsParkedJobs(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.ProbeMin, c.ProbeMax = time.Minute, time.Minute }))
	a := r.schedule("delay.in.0s.t.x", "p")
	r.parked(a.ID, "t.x")
	w := r.owner("w1", 1, "t.x")
	start := time.Now()
	w.beat()
	m := receive(t, w.jobs)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the parked job came after %v", took)
	}
	attempt(t, m, 1, a.Due)
	r.done(m)
}

func TestKilledWorkerLosesItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w1 := r.owner("w1", 1, "t.x")
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	w1.pinged(2)
	w2 := r.owner("w2", 1, "t.x")
	w2.beat()
	w1.nc.Close()
	again := receive(t, w2.jobs)
	attempt(t, again, 2, time.Time{})
	if again.Header.Get("Delay-Job-Id") != a.ID {
		t.Errorf("another job: %v", again.Header)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("the late completion is answered %q", answer)
	}
	r.done(again)
}

// A worker whose pings never reached it may not be allowed to answer them.
func TestWorkerThatNeverAnsweredKeepsItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := &owner{t: t, nc: connect(t, r.srv.URL()), name: "w1", subjects: []string{"t.x"}, capacity: 1, directed: true, jobs: make(chan *nats.Msg, 10)}
	w.hear("delay.job.w1", func(m *nats.Msg) { w.jobs <- m })
	w.flush()
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	r.busy("w2", "t.y").pinged(longSuspicion)
	if got := r.state(a.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the job is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m)
}

func TestWorkerThatComesBackKeepsItsJobs(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	w.pinged(2)
	w.nc.Close()
	w = r.owner("w1", 1, "t.x")
	if stale := w.beat(m); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	w.pinged(longSuspicion)
	if stale := w.beat(m); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	r.done(m)
}

func TestSilentWorkerLosesItsJobs(t *testing.T) {
	const ttl = 300 * time.Millisecond
	r := newRig(t, withConfig(func(c *adapter.Config) { c.WorkerTTL = ttl }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	start := time.Now()
	w1.beat(m)
	w2.beating()
	again := receive(t, w2.jobs)
	if took := time.Since(start); took < ttl || took > ttl+time.Second {
		t.Errorf("recovered after %v, the TTL is %v", took, ttl)
	}
	attempt(t, again, 2, time.Time{})
	if stale := w1.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("it is not told what it has lost: %v", stale)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("the late completion is answered %q", answer)
	}
	r.done(again)
}

func TestManyThatVanishTogetherAreNotBelievedGone(t *testing.T) {
	r := newRig(t, withConfig(fast))
	names := []string{"w1", "w2", "w3", "w4"}
	var ws []*owner
	for _, name := range names {
		w := r.owner(name, 1, "t.x")
		w.beat()
		ws = append(ws, w)
	}
	r.scheduleAll(4, always("delay.in.0s.t.x"), always("p"))
	var held []*nats.Msg
	for _, w := range ws {
		m := receive(t, w.jobs)
		held = append(held, m)
		w.beat(m)
		w.pinged(2)
	}
	for _, w := range ws[:3] {
		w.nc.Close()
	}
	ws[3].pinged(longSuspicion)
	for _, m := range held {
		if got := r.state(m.Header.Get("Delay-Job-Id")); got.State != job.Running || got.Attempt != 1 {
			t.Errorf("a job is %s at attempt %d", got.State, got.Attempt)
		}
		r.done(m)
	}
}

// FixStaleRunningTasks
func TestJobThatAWorkerDoesNotHave(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	m := receive(t, w.jobs)
	start := time.Now()
	w.beating() // without m
	again := receive(t, w.jobs)
	if took := time.Since(start); took < time.Second {
		t.Errorf("released after %v: the heartbeat may have been begun before the job arrived", took)
	}
	if again.Header.Get("Delay-Job-Id") != a.ID || again.Header.Get("Delay-Attempt") != "2" {
		t.Errorf("delivered %v", again.Header)
	}
	if answer := r.settle(m, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("completion of the released delivery answered %q", answer)
	}
	r.done(again)
}

func TestHeartbeatCompletes(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	w.say("hb", nil, tokens(m))
	r.becomes(a.ID, job.Done)
	r.done(m) // repeated
}

func TestHeartbeatRenewsTheLease(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "600ms")
	m := receive(t, w.jobs)
	w.beating(m)
	first := r.state(a.ID).Next
	eventually(t, "the lease is renewed twice over", func() bool { return r.state(a.ID).Next > first.Add(time.Second) })
	nothing(t, w.jobs)
	r.done(m)
}

func TestFarewell(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w1, w2 := r.owner("w1", 2, "t.x"), r.owner("w2", 2, "t.x")
	w1.beat()
	r.scheduleAll(2, always("delay.in.0s.t.x"), always("p"), "Delay-Max-Attempts", "1")
	kept, given := receive(t, w1.jobs), receive(t, w1.jobs)
	w2.beat()
	if stale := w1.say("bye", tokens(kept), nil); len(stale) > 0 {
		t.Errorf("stale: %v", stale)
	}
	again := receive(t, w2.jobs)
	if again.Header.Get("Delay-Job-Id") != given.Header.Get("Delay-Job-Id") {
		t.Errorf("%v went back, want %v", again.Header, given.Header)
	}
	r.done(kept)
	r.done(again)
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, w2.jobs))
	nothing(t, w1.jobs)
}

func TestTargetIsPlainAgainWithoutWorkers(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, w.jobs))
	plain := r.worker("t.x")
	w.say("bye", nil, nil)
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	attempt(t, m, 1, a.Due)
	r.done(m)
}

// A worker that may not subscribe to its subject gets its jobs by the queue group.
func TestWorkerThatDoesNotHearItsSubject(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := &owner{t: t, nc: r.nc, name: "w1", subjects: []string{"t.x"}, capacity: 1, directed: true}
	plain := r.worker("t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	// The bridge tries once more with each heartbeat.
	for heard := 0; len(plain) == 0; heard++ {
		if heard > 100 {
			t.Fatal("the job does not come by the queue group")
		}
		w.beat()
		r.intakeArrived()
	}
	m := receive(t, plain)
	attempt(t, m, 1, a.Due)
	r.done(m)
}

func TestClaim(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	w1, w2 := r.owner("w1", 1), r.owner("w2", 1)
	w1.directed, w2.directed = false, false
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack-Wait", "7s", "Delay-Backoff", "0s")
	m := receive(t, plain)
	for range 2 {
		if got, want := w1.request(m, `+CLAIM {"worker":"w1"}`), `+OK {"attempt":1,"ack_wait_ms":7000}`; got != want {
			t.Errorf("claim answered %q, want %q", got, want)
		}
	}
	if got := w2.request(m, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":409,`) {
		t.Errorf("claim of another's job answered %q", got)
	}
	if got := r.state(a.ID); got.Owner != "b1/w1" {
		t.Errorf("owned by %q", got.Owner)
	}
	if stale := w1.beat(m); len(stale) != 0 {
		t.Errorf("stale for its owner: %v", stale)
	}
	if stale := w2.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("not stale for another: %v", stale)
	}
	w1.pinged(2)
	w1.nc.Close()
	again := receive(t, plain)
	attempt(t, again, 2, time.Time{})
	if got := w2.request(m, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":409,`) {
		t.Errorf("claim of an old attempt answered %q", got)
	}
	r.done(again)
	if got := w2.request(again, `+CLAIM {"worker":"w2"}`); !strings.HasPrefix(got, `-ERR {"code":4`) {
		t.Errorf("claim of a completed job answered %q", got)
	}
}

func TestBadClaims(t *testing.T) {
	r := newRig(t, withConfig(fast))
	plain := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	for _, body := range []string{"+CLAIM", "+CLAIM {", `+CLAIM {"worker":""}`, `+CLAIM {"worker":"a.b"}`, `+CLAIM {"worker":1}`} {
		if got := r.settle(m, body); !strings.HasPrefix(got, `-ERR {"code":400,"err_code":20400,`) {
			t.Errorf("%q answered %q", body, got)
		}
	}
	if got := r.state(a.ID); got.Owner != "b1" {
		t.Errorf("owned by %q", got.Owner)
	}
	r.done(m)
}

func TestSnooze(t *testing.T) {
	r := newRig(t)
	plain := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	for attempt := 1; attempt <= 3; attempt++ {
		m := receive(t, plain)
		if got := m.Header.Get("Delay-Attempt"); got != fmt.Sprint(attempt) {
			t.Errorf("attempt %s, want %d", got, attempt)
		}
		if answer := r.settle(m, `-NAK {"delay":1000000,"spare":true}`); answer != "" {
			t.Errorf("snooze answered %q", answer)
		}
	}
	r.done(receive(t, plain))
}

func TestBadHeartbeats(t *testing.T) {
	r := newRig(t, withConfig(fast))
	good := r.owner("w1", 1, "t.x").body(nil, nil)
	with := func(key string, value any) string {
		body := map[string]any{}
		for k, v := range good {
			body[k] = v
		}
		body[key] = value
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, tt := range map[string]struct{ subject, body string }{
		"broken JSON":        {"delay.hb.w1", "{"},
		"empty":              {"delay.hb.w1", ""},
		"another name":       {"delay.hb.w2", with("queue", "q")},
		"bad name":           {"delay.hb.w$1", with("worker", "w$1")},
		"too many":           {"delay.hb.w1", with("running", slices.Repeat([]string{"AXIAAA"}, 10000))},
		"bad token":          {"delay.hb.w1", with("running", []string{"?"})},
		"bad token in done":  {"delay.hb.w1", with("done", []string{"AXI"})},
		"negative capacity":  {"delay.hb.w1", with("capacity", -1)},
		"more free than all": {"delay.hb.w1", with("free", 2)},
		"bad subject":        {"delay.hb.w1", with("subjects", []string{"a..b"})},
		"bad farewell":       {"delay.bye.w1", "{"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := r.nc.Request(tt.subject, []byte(tt.body), patient)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(m.Data), `{"error":{"code":400,"err_code":20400,"description":"`) {
				t.Errorf("answered %q", m.Data)
			}
		})
	}
	// None of them has joined.
	plain := r.worker("t.x")
	r.schedule("delay.in.0s.t.x", "p")
	r.done(receive(t, plain))
}

// ReconstructWorkerTasks
func TestBridgeTakesItsFormerLeasesIn(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { fast(c); c.WorkerTTL = 500 * time.Millisecond; c.Drain = time.Millisecond }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	lives := r.schedule("delay.in.0s.t.x", "lives")
	m1 := receive(t, w1.jobs)
	w2.beat()
	dies := r.schedule("delay.in.0s.t.x", "dies")
	m2 := receive(t, w2.jobs)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	w2.nc.Close()
	r.start()
	w1.beating(m1)
	eventually(t, "the dead worker's job is pending", func() bool { return r.state(dies.ID).State == job.Pending })
	if got := r.state(lives.ID); got.State != job.Running || got.Attempt != 1 {
		t.Errorf("the live worker's job is %s at attempt %d", got.State, got.Attempt)
	}
	r.done(m1)
	if answer := r.settle(m2, ""); !strings.HasPrefix(answer, `-ERR {"code":409,`) {
		t.Errorf("completion of the dead worker answered %q", answer)
	}
}

// The store may be asked about a job in vain; then nothing is said about it.
func TestNothingIsStaleThatCannotBeJudged(t *testing.T) {
	store := &blindStore{Store: memdelay.New(memdelay.Options{})}
	r := newRig(t, withConfig(fast), withStore(store))
	plain := r.worker("t.x")
	w := r.owner("w1", 1)
	w.directed = false
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, plain)
	r.done(m)
	store.blind.Store(true)
	if stale := w.beat(m); len(stale) != 0 {
		t.Errorf("stale though nobody can know: %v", stale)
	}
	store.blind.Store(false)
	if stale := w.beat(m); !slices.Equal(stale, tokens(m)) {
		t.Errorf("stale: %v", stale)
	}
}

func TestOneBridgeAnswers(t *testing.T) {
	srv := testnats.Start(t)
	r := newRig(t, withConfig(fast), func(c *rigConfig) { c.srv = srv })
	newRig(t, beside(r), withConfig(func(c *adapter.Config) { fast(c); c.ID = "b2" }))
	w := r.owner("w1", 1, "t.x")
	answers := r.listen("answers")
	data, err := json.Marshal(w.body(nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	const beats = 50
	for range beats {
		if err := r.nc.PublishRequest("delay.hb.w1", "answers", data); err != nil {
			t.Fatal(err)
		}
	}
	for range beats {
		receive(t, answers)
	}
	w.beat() // answered later than any second answer
	nothing(t, answers)
}

// What no worker settles goes to its target, whoever covers that.
func TestJobsThatNoWorkerSettlesGoToTheirTargets(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	target := r.worker("t.x")
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Ack", "none")
	receive(t, target)
	r.becomes(a.ID, job.Done)
	nothing(t, w.jobs)
}

// A dead worker's job that may not be tried again is dead.
func TestLastAttemptOfAKilledWorker(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	a := r.schedule("delay.in.0s.t.x", "p", "Delay-Max-Attempts", "1")
	receive(t, w.jobs)
	w.pinged(2)
	w.nc.Close()
	if got := r.becomes(a.ID, job.Dead); got.Reason != "max_attempts" {
		t.Errorf("dead for %q", got.Reason)
	}
}

// What a peer gives a worker uses its slots.
func TestSlotsThatAPeerUses(t *testing.T) {
	r := newRig(t, withConfig(fast), withStore(newModeStore(job.ModeRedis)))
	w := r.owner("w1", 2, "t.x")
	w.beat()
	state := `{"bridge":"b2","circuit_state":"CLOSED","version":1}`
	eventually(t, "the bridge listens to its peer", func() bool {
		if err := r.nc.Publish("delay.sys.state", []byte(state)); err != nil {
			t.Fatal(err)
		}
		_, err := r.nc.Request("delay.owner.nobody", nil, 20*time.Millisecond)
		return !errors.Is(err, nats.ErrNoResponders)
	})
	tell := func(event string) {
		t.Helper()
		if err := r.nc.Publish("delay.owner.w1", fmt.Appendf(nil, `{"event":%q,"job":"j","token":"t","attempt":1,"bridge":"b2"}`, event)); err != nil {
			t.Fatal(err)
		}
	}
	tell("claimed")
	tell("claimed")
	r.dispatchArrived()
	a := r.schedule("delay.in.0s.t.x", "p")
	r.parked(a.ID, "t.x")
	nothing(t, w.jobs)
	tell("released")
	m := receive(t, w.jobs)
	attempt(t, m, 1, a.Due)
	b := r.schedule("delay.in.0s.t.x", "p")
	r.parked(b.ID, "t.x")
	nothing(t, w.jobs)
	w.beat(m) // one slot is free by its own account
	again := receive(t, w.jobs)
	r.done(m)
	r.done(again)
}

// A bridge that is gone leaves leases, which a peer takes in.
func TestPeerRecoversJobsOfABridgeThatIsGone(t *testing.T) {
	r := newRig(t, withStore(newModeStore(job.ModeRedis)), withConfig(func(c *adapter.Config) { c.Drain = 10 * time.Millisecond }))
	w1, w2 := r.owner("w1", 1, "t.x"), r.owner("w2", 1, "t.x")
	w1.beat()
	a := r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w1.jobs)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	w1.nc.Close()
	newRig(t, beside(r), withConfig(func(c *adapter.Config) { fast(c); c.WorkerTTL = 500 * time.Millisecond; c.ID = "b2" }))
	w2.beating()
	again := receive(t, w2.jobs)
	attempt(t, again, 2, time.Time{})
	if again.Header.Get("Delay-Job-Id") != a.ID || token(again) == token(m) {
		t.Errorf("delivered %v", again.Header)
	}
	if answer := w2.request(again, ""); answer != "" {
		t.Errorf("completion answered %q", answer)
	}
}
