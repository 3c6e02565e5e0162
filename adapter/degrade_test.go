package adapter_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
)

// modeStore is a memory store that says which mode it is in.
type modeStore struct {
	job.Store
	mode   atomic.Int32
	probes chan struct{} // one per look that was asked for
}

func newModeStore(m job.Mode) *modeStore {
	s := &modeStore{Store: memdelay.New(memdelay.Options{}), probes: make(chan struct{}, 1000)}
	s.mode.Store(int32(m))
	return s
}

func (s *modeStore) Mode() job.Mode { return job.Mode(s.mode.Load()) }
func (s *modeStore) ProbeSoon()     { s.probes <- struct{}{} }

// change changes the mode as a failing store does.
func (s *modeStore) change(r *rig, to job.Mode) {
	from := s.Mode()
	s.mode.Store(int32(to))
	r.bridge.ModeChanged(from, to, "test")
}

type stateMsg struct {
	Bridge       string
	CircuitState string `json:"circuit_state"`
	Version      int64
	UpdatedMS    int64 `json:"updated_ms"`
}

// nextState returns the next message about bridge in which accept holds.
func nextState(t *testing.T, ch <-chan *nats.Msg, bridge string, accept func(stateMsg) bool) (s stateMsg, m *nats.Msg) {
	t.Helper()
	for end := time.Now().Add(patient); ; {
		m := receive(t, ch)
		if time.Now().After(end) {
			t.Fatalf("not told; the last is %s", m.Data)
		}
		if err := json.Unmarshal(m.Data, &s); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		if s.Bridge == bridge && accept(s) {
			return s, m
		}
	}
}

func TestStateIsTold(t *testing.T) {
	store := newModeStore(job.ModeRedis)
	r := newRig(t, withStore(store))
	told := r.listen("delay.sys.state")
	before := time.Now().UnixMilli()
	last, _ := nextState(t, told, "b1", func(s stateMsg) bool { return true }) // the one of every second
	if last.CircuitState != "CLOSED" || last.UpdatedMS > time.Now().UnixMilli() || last.UpdatedMS < before-60_000 {
		t.Errorf("state %+v", last)
	}
	for _, c := range []struct {
		mode    job.Mode
		circuit string
	}{{job.ModeLocal, "OPEN"}, {job.ModeMigrating, "HALF_OPEN"}, {job.ModeLocal, "OPEN"}, {job.ModeRedis, "CLOSED"}} {
		start := time.Now()
		store.change(r, c.mode)
		s, _ := nextState(t, told, "b1", func(s stateMsg) bool { return s.Version != last.Version })
		if s.CircuitState != c.circuit || s.Version <= last.Version {
			t.Errorf("%v: told %+v after %+v", c.mode, s, last)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("%v: told after %v", c.mode, took)
		}
		last = s
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if s, _ := nextState(t, told, "b1", func(s stateMsg) bool { return s.Version != last.Version }); s.Version <= last.Version {
		t.Errorf("version %d after a restart, %d before", s.Version, last.Version)
	}
}

// TestStateOfAPeer: a peer that reaches the store prompts a look, once, and
// changes nothing.
func TestStateOfAPeer(t *testing.T) {
	store := newModeStore(job.ModeLocal)
	r := newRig(t, withStore(store))
	told := r.listen("delay.sys.state")
	nextState(t, told, "b1", func(stateMsg) bool { return true })
	say := func(version int, circuit string) {
		t.Helper()
		m, err := json.Marshal(map[string]any{"bridge": "b2", "circuit_state": circuit, "version": version})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := r.nc.Request("delay.sys.state", m, patient)
		if err != nil {
			t.Fatal(err)
		}
		var ack struct {
			Bridge  string
			Version int
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Bridge != "b1" || ack.Version != version {
			t.Errorf("acknowledged with %s", reply.Data)
		}
	}
	say(5, "OPEN")
	say(4, "CLOSED")
	if n := len(store.probes); n != 0 {
		t.Errorf("%d looks prompted by a peer that is down, or was up before", n)
	}
	say(6, "CLOSED")
	say(6, "CLOSED")
	if n := len(store.probes); n != 1 {
		t.Errorf("%d looks prompted, want 1", n)
	}
	if r.bridge.Peers().Settled() != true || store.Mode() != job.ModeLocal {
		t.Error("the peer is up, and decides nothing")
	}
	say(7, "OPEN")
	if r.bridge.Peers().Settled() {
		t.Error("settled although a peer is down")
	}
	// A change is sent to a live peer until it acknowledges.
	store.change(r, job.ModeMigrating)
	is := func(s stateMsg) bool { return s.CircuitState == "HALF_OPEN" }
	first, m := nextState(t, told, "b1", is)
	again, m2 := nextState(t, told, "b1", is)
	if m.Reply == "" || m2.Reply == "" || first != again {
		t.Errorf("%+v, then %+v, asking for answers on %q and %q", first, again, m.Reply, m2.Reply)
	}
}

// TestOnlyThisBridgeIsCutOff: with a peer that reaches the store, the bridge
// leaves the intake to it, fires none of the shared jobs, and comes back when the
// peer has lost the store too, or the bridge reaches it again.
func TestOnlyThisBridgeIsCutOff(t *testing.T) {
	var reached atomic.Bool
	reached.Store(true)
	cut, well := newModeStore(job.ModeRedis), newModeStore(job.ModeRedis)
	r := newRig(t, withStore(cut), withConfig(func(c *adapter.Config) {
		c.Canary = func(context.Context) error { return errors.New("cut off") }
	}))
	told := r.listen("delay.sys.state")
	peer := newRig(t, func(c *rigConfig) { c.srv = r.srv }, withStore(well), withConfig(func(c *adapter.Config) {
		c.ID = "b2"
		c.Canary = func(context.Context) error {
			if reached.Load() {
				return nil
			}
			return errors.New("cut off too")
		}
	}))
	nextState(t, told, "b2", func(stateMsg) bool { return true })
	eventually(t, "the bridge knows its peer", func() bool { return r.bridge.Peers().Reachable(t.Context()) })
	if peer.bridge.Peers().Reachable(t.Context()) {
		t.Error("the peer believes that the bridge reaches the store")
	}
	taken := func() (n int) { // by the bridge, of those that are put now
		for _, id := range r.scheduleAll(40, always("delay.in.1h.t.x"), always("p")) {
			if r.state(id).State == job.Pending {
				n++
			}
		}
		return n
	}
	cut.change(r, job.ModeLocal)
	eventually(t, "the peer takes all jobs", func() bool { return taken() == 0 })
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		if r.bridge.Peers().Fires(id) {
			t.Errorf("fires %q although its peer can", id)
		}
	}
	reached.Store(false)
	eventually(t, "the bridge takes jobs again, for nobody reaches the store", func() bool { return taken() > 0 })
	fires := func(id string) int {
		n := 0
		for _, p := range []adapter.Peers{r.bridge.Peers(), peer.bridge.Peers()} {
			if p.Fires(id) {
				n++
			}
		}
		return n
	}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		eventually(t, "one bridge fires "+id, func() bool { return fires(id) == 1 })
	}
	reached.Store(true)
	eventually(t, "the peer takes all jobs again", func() bool { return taken() == 0 })
	cut.change(r, job.ModeRedis)
	eventually(t, "the bridge takes jobs again, for it reaches the store", func() bool { return taken() > 0 })
}

func TestModeChangeWakesTheLoops(t *testing.T) {
	store := newModeStore(job.ModeRedis)
	r := newRig(t, withStore(store))
	work := r.worker("t.x")
	r.done(receive(t, func() <-chan *nats.Msg { r.schedule("delay.in.0s.t.x", "first"); return work }()))
	// A job that the bridge does not know of, as if it were in another store.
	// Without being woken the claimer looks after a second.
	var waits []time.Duration
	for range 5 {
		if _, err := store.Put(t.Context(), []job.Job{{Target: "t.x", Due: job.At(time.Now()), AckWait: time.Minute}}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		store.change(r, job.ModeLocal)
		m := receive(t, work)
		waits = append(waits, time.Since(start))
		r.done(m)
	}
	slow := 0
	for _, w := range waits {
		if w > 500*time.Millisecond {
			slow++
		}
	}
	if slow > 1 {
		t.Errorf("delivered after %v", waits)
	}
}

func TestEventsOfDegradation(t *testing.T) {
	store := newModeStore(job.ModeRedis)
	r := newRig(t, withStore(store))
	events := r.listen("delay.event.>")
	store.change(r, job.ModeLocal)
	store.change(r, job.ModeMigrating)
	r.bridge.Joined("m1", job.Info{Job: job.Job{ID: `a"b`, Target: "t.x"}})
	r.bridge.Migrated("m1", 7, 1500*time.Millisecond)
	store.change(r, job.ModeRedis)
	r.bridge.DataLoss("shard 3 is empty", 4)
	for _, want := range []string{
		`degraded {"type":"degraded","version":1,"bridge":"b1","from":"redis","to":"local","why":"test"}`,
		`migrated {"type":"migrated","version":1,"bridge":"b1","migration":"m1","jobs":1,"took_ms":0,"id":"a\"b","target":"t.x"}`,
		`migrated {"type":"migrated","version":1,"bridge":"b1","migration":"m1","jobs":7,"took_ms":1500}`,
		`recovered {"type":"recovered","version":1,"bridge":"b1","from":"migrating","to":"redis","why":"test"}`,
		`data_loss {"type":"data_loss","version":1,"bridge":"b1","why":"shard 3 is empty","offered":4}`,
	} {
		m := receive(t, events)
		if got := strings.TrimPrefix(m.Subject, "delay.event.") + " " + string(m.Data); got != want {
			t.Errorf("event %s\nwant  %s", got, want)
		}
	}
}

// metric returns the value of a series, and whether it exists.
func metric(t *testing.T, reg *prometheus.Registry, name string, labels ...string) (float64, bool) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetName(), l.GetValue())
			}
			if f.GetName() == name && strings.Join(got, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return 0, false
}

func TestMetricsOfDegradation(t *testing.T) {
	store, reg := newModeStore(job.ModeRedis), prometheus.NewRegistry()
	held := 0
	r := newRig(t, withStore(store), withConfig(func(c *adapter.Config) {
		c.Registerer, c.Service, c.LocalJobs = reg, "orders", func() int { return held }
	}))
	check := func(want float64, name string, labels ...string) {
		t.Helper()
		if got, ok := metric(t, reg, name, labels...); !ok || got != want {
			t.Errorf("%s %v: %v, exists: %v; want %v", name, labels, got, ok, want)
		}
	}
	fallback := func(triggered, spilled, rejected float64) {
		t.Helper()
		check(triggered, "circuit_breaker_fallback_invocations_total", "service", "orders", "status", "triggered")
		check(spilled, "circuit_breaker_fallback_invocations_total", "service", "orders", "status", "spilled")
		check(rejected, "circuit_breaker_fallback_invocations_total", "service", "orders", "status", "rejected")
	}
	fallback(0, 0, 0)
	check(0, "fallback_queue_depth", "instance", "b1", "service", "orders")
	check(0, "recovery_latency_seconds", "service", "orders")
	check(1, "delaybridge_mode", "mode", "redis")
	check(0, "delaybridge_mode", "mode", "local")

	held = 3
	store.change(r, job.ModeLocal)
	r.bridge.Fallback("triggered", 5)
	r.bridge.Fallback("rejected", 2)
	r.bridge.Recovery(time.Second, 4)
	fallback(5, 0, 2)
	check(3, "fallback_queue_depth", "instance", "b1", "service", "orders")
	check(4, "recovery_latency_seconds", "service", "orders")
	check(0, "delaybridge_mode", "mode", "redis")
	check(1, "delaybridge_mode", "mode", "local")
}

// spillStore hangs in Put and has room for so many jobs beside it.
type spillStore struct {
	faultStore
	mu    sync.Mutex
	room  int
	spilt map[string]bool
}

func (s *spillStore) PutLocal(_ context.Context, jobs []job.Job) ([]job.PutResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]job.PutResult, len(jobs))
	for i := range jobs {
		if s.room == 0 {
			out[i].Err = job.ErrFull
			continue
		}
		s.room--
		jobs[i].ID = job.NewID(0)
		s.spilt[jobs[i].ID] = true
		out[i] = job.PutResult{Due: jobs[i].Due, Stored: job.StoredLocal}
	}
	return out, nil
}

// TestSpill: what waits in a long queue for a second goes to the disk while that
// has room, then it is refused, with an event.
func TestSpill(t *testing.T) {
	const queue, waiting, room = 200, 195, 10
	store := &spillStore{faultStore: faultStore{Store: memdelay.New(memdelay.Options{})}, room: room, spilt: map[string]bool{}}
	entered, release := make(chan struct{}), make(chan struct{})
	var first sync.Once
	store.put = func(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
		first.Do(func() { close(entered) })
		<-release
		return store.Store.Put(ctx, jobs)
	}
	r, reg := measured(t, withStore(store), withConfig(func(c *adapter.Config) { c.IntakeQueue, c.StoreTimeout = queue, time.Minute }))
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	becomesMetric(t, reg, 0, "delaybridge_intake_overloaded")
	events := r.listen("delay.event.rejected")
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox)
	publish := func(n int) {
		for range n {
			if err := r.nc.PublishRequest("delay.in.1h.t.x", inbox, nil); err != nil {
				t.Fatal(err)
			}
		}
		r.intakeArrived()
	}
	publish(1)
	<-entered
	start := time.Now()
	publish(waiting)
	spilt, refused := 0, 0
	for range waiting { // one batch takes all of it
		switch a := decodeAck(t, receive(t, replies)); {
		case a.Error != nil && a.Error.ErrCode == job.ErrFull.ErrCode:
			refused++
		case a.Error == nil && a.Stored == "local" && store.spilt[a.ID]:
			spilt++
		default:
			t.Fatalf("answered %+v", a)
		}
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("spilt after %v already", took)
	}
	becomesMetric(t, reg, 1, "delaybridge_intake_overloaded")
	if spilt != room || refused != waiting-room {
		t.Errorf("%d spilt, %d refused; there was room for %d", spilt, refused, room)
	}
	if m := receive(t, events); !strings.Contains(string(m.Data), `"err_code":20429`) {
		t.Errorf("event %s", m.Data)
	}
	nothing(t, events)
}

func TestJournalHeader(t *testing.T) {
	for name, c := range map[string]struct {
		journal adapter.Journal
		all     bool
		header  string
		want    string // the job's journal
	}{
		"asked for":    {adapter.WithJournal, false, "local", "b1"},
		"in capitals":  {adapter.WithJournal, false, "LOCAL", "b1"},
		"not asked":    {adapter.WithJournal, false, "", ""},
		"all":          {adapter.WithJournal, true, "", "b1"},
		"on disk":      {adapter.AlwaysOnDisk, false, "local", ""},
		"all, on disk": {adapter.AlwaysOnDisk, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withConfig(func(cfg *adapter.Config) { cfg.Journal, cfg.JournalAll = c.journal, c.all }))
			var headers []string
			if c.header != "" {
				headers = []string{"Delay-Durability", c.header}
			}
			a := r.schedule("delay.in.1h.t.x", "p", headers...)
			if got := r.state(a.ID).Journal; got != c.want {
				t.Errorf("journal %q, want %q", got, c.want)
			}
			r.refused(job.ErrHeader, message("delay.in.1h.t.x", "p", "Delay-Durability", "redis"))
		})
	}
	if err := (adapter.Config{ID: "b1", JournalAll: true}).Validate(); err == nil || !strings.Contains(err.Error(), "durability") {
		t.Errorf("a journal for all without a journal: %v", err)
	}
}
