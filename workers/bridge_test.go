package workers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/workers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient bounds what a test waits for; it is never what a test measures.
const patient = 20 * time.Second

// message is what a worker sent to the fake bridge.
type message struct {
	token  string
	body   string
	header nats.Header
	reply  string
	at     time.Time
}

// beat is a heartbeat or a farewell.
type beat struct {
	Worker   string
	Queue    string
	Subjects []string
	Capacity int
	Free     int
	Directed bool
	Running  []string
	Done     []string

	header nats.Header
	at     time.Time
}

// fakeBridge speaks the bridge's side of the protocol for one worker. It
// answers as a bridge whose jobs are all the worker's, unless answers says
// otherwise.
type fakeBridge struct {
	t    testing.TB
	nc   *nats.Conn
	subs []*nats.Subscription

	mu       sync.Mutex
	next     int
	settle   func(m message) string // what a claim or settlement is answered; silent: nothing
	stale    func(b beat) []string
	messages []message
	beats    []beat
	byes     []beat
	news     chan struct{}
}

const silent = "silent"

func newBridge(t testing.TB, srv *testnats.Server, opts ...nats.Option) *fakeBridge {
	b := &fakeBridge{t: t, nc: connect(t, srv, opts...), news: make(chan struct{}, 1)}
	b.up()
	return b
}

func connect(t testing.TB, srv *testnats.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{nats.ReconnectWait(5 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.MaxReconnects(-1)}, opts...)
	nc, err := nats.Connect(srv.URL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// up makes the bridge listen, down makes it deaf, as one that is restarted.
func (b *fakeBridge) up() {
	b.t.Helper()
	for subject, cb := range map[string]nats.MsgHandler{
		"delay.ack.b1.*": b.onAck,
		"delay.hb.*":     func(m *nats.Msg) { b.onBeat(m, &b.beats) },
		"delay.bye.*":    func(m *nats.Msg) { b.onBeat(m, &b.byes) },
	} {
		s, err := b.nc.Subscribe(subject, cb)
		if err != nil {
			b.t.Fatal(err)
		}
		b.subs = append(b.subs, s)
	}
	b.flush()
}

func (b *fakeBridge) down() {
	b.t.Helper()
	for _, s := range b.subs {
		if err := s.Unsubscribe(); err != nil {
			b.t.Fatal(err)
		}
	}
	b.subs = nil
	b.flush()
}

func (b *fakeBridge) flush() {
	b.t.Helper()
	if err := b.nc.FlushTimeout(patient); err != nil {
		b.t.Fatal(err)
	}
}

// answers changes what claims and settlements are answered.
func (b *fakeBridge) answers(f func(m message) string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle = f
}

func (b *fakeBridge) calls(f func(beat) []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = f
}

func (b *fakeBridge) onAck(m *nats.Msg) {
	got := message{token: m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], body: string(m.Data), header: m.Header, reply: m.Reply, at: time.Now()}
	b.mu.Lock()
	b.messages = append(b.messages, got)
	answer := ""
	if strings.HasPrefix(got.body, "+CLAIM") {
		answer = `+OK {"attempt":1,"ack_wait_ms":30000}`
	}
	if b.settle != nil {
		answer = b.settle(got)
	}
	b.mu.Unlock()
	if answer != silent && m.Reply != "" {
		m.Respond([]byte(answer))
	}
	b.wake()
}

func (b *fakeBridge) onBeat(m *nats.Msg, list *[]beat) {
	got := beat{header: m.Header, at: time.Now()}
	if err := json.Unmarshal(m.Data, &got); err != nil {
		b.t.Errorf("heartbeat %q: %v", m.Data, err)
		return
	}
	if !strings.HasSuffix(m.Subject, "."+got.Worker) {
		b.t.Errorf("heartbeat of %s on %s", got.Worker, m.Subject)
	}
	b.mu.Lock()
	*list = append(*list, got)
	stale := []string{}
	if b.stale != nil {
		stale = append(stale, b.stale(got)...)
	}
	b.mu.Unlock()
	body, _ := json.Marshal(map[string][]string{"stale": stale})
	m.Respond(body)
	b.wake()
}

func (b *fakeBridge) wake() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// until waits until the bridge has heard what cond looks for.
func (b *fakeBridge) until(what string, cond func() bool) {
	b.t.Helper()
	deadline := time.After(patient)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		b.mu.Lock()
		ok := cond()
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-b.news:
		case <-poll.C:
		case <-deadline:
			b.mu.Lock()
			defer b.mu.Unlock()
			b.t.Fatalf("not seen: %s\nmessages %+v\nlast beats %+v\nbyes %+v", what, b.messages, b.beats[max(0, len(b.beats)-2):], b.byes)
		}
	}
}

// of returns what was sent about the delivery.
func (b *fakeBridge) of(token string) (out []message) {
	for _, m := range b.messages {
		if m.token == token {
			out = append(out, m)
		}
	}
	return out
}

// settled waits for the n-th message about the delivery.
func (b *fakeBridge) settled(token string, n int) message {
	b.t.Helper()
	b.until(fmt.Sprintf("message %d about %s", n, token), func() bool { return len(b.of(token)) >= n })
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(token)[n-1]
}

// beatThat waits for a heartbeat that is as asked.
func (b *fakeBridge) beatThat(what string, cond func(beat) bool) beat {
	b.t.Helper()
	var found beat
	b.until("heartbeat: "+what, func() bool {
		i := slices.IndexFunc(b.beats, cond)
		if i >= 0 {
			found = b.beats[i]
		}
		return i >= 0
	})
	return found
}

// beats that have come so far are forgotten.
func (b *fakeBridge) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats = nil
}

type option func(*nats.Msg)

func header(name, value string) option { return func(m *nats.Msg) { m.Header[name] = []string{value} } }

// send publishes a delivery to subject and returns its token.
func (b *fakeBridge) send(subject, payload string, opts ...option) string {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	token := "tok-" + strconv.Itoa(b.next)
	b.mu.Unlock()
	m := &nats.Msg{Subject: subject, Reply: "delay.ack.b1." + token, Data: []byte(payload), Header: nats.Header{
		"Delay-Job-Id": {"job-" + payload}, "Delay-Due": {"2026-11-30T09:30:00.000001Z"}, "Delay-Attempt": {"1"},
		"Delay-Ack-Wait": {"30s"}, "Delay-Token": {token}, "Delay-Target": {"t.x"},
	}}
	for _, o := range opts {
		o(m)
	}
	if err := b.nc.PublishMsg(m); err != nil {
		b.t.Fatal(err)
	}
	return token
}

// direct sends a job to the worker itself.
func (b *fakeBridge) direct(w *running, payload string, opts ...option) string {
	b.t.Helper()
	return b.send("delay.job."+w.Name(), payload, opts...)
}

// running is a worker that runs.
type running struct {
	*workers.Worker
	conn *nats.Conn
	stop context.CancelFunc
	done chan error
	once sync.Once
	err  error
}

func config() workers.Config {
	return workers.Config{Queue: "q", Subjects: []string{"t.>"}, Concurrency: 4, Heartbeat: 50 * time.Millisecond, Drain: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler)}
}

// run runs a worker until the test ends, and returns once bridges know it.
func run(t testing.TB, b *fakeBridge, nc *nats.Conn, cfg workers.Config, h workers.Handler, how ...func(*workers.Worker)) *running {
	t.Helper()
	w, err := workers.New(nc, cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range how {
		f(w)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, conn: nc, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- w.Run(ctx) }()
	t.Cleanup(func() { r.end(t) })
	b.beatThat("the first", func(h beat) bool { return h.Worker == w.Name() })
	b.until("the worker listens", w.Listens)
	return r
}

// end stops the worker and returns what Run returned.
func (r *running) end(t testing.TB) error {
	t.Helper()
	r.stop()
	r.once.Do(func() {
		select {
		case r.err = <-r.done:
		case <-time.After(patient):
			t.Error("Run does not return")
		}
	})
	return r.err
}

// rig is a server, a fake bridge and a worker.
func rig(t testing.TB, cfg workers.Config, h workers.Handler, how ...func(*workers.Worker)) (*fakeBridge, *running) {
	t.Helper()
	srv := testnats.Start(t)
	b := newBridge(t, srv)
	return b, run(t, b, connect(t, srv), cfg, h, how...)
}

// hurried makes a worker repeat and give up ten times as fast.
var hurried = (*workers.Worker).Hurry

// unhurried makes a worker repeat nothing by itself.
var unhurried = (*workers.Worker).Patient

// hoarding makes a worker give nothing back that it has not claimed.
var hoarding = (*workers.Worker).Hoard

// hold is a handler that runs until it is let go or cancelled.
type hold struct {
	began chan *workers.Job
	let   chan error
}

func newHold() *hold {
	return &hold{began: make(chan *workers.Job, 8192), let: make(chan error, 8192)}
}

func (h *hold) handle(ctx context.Context, j *workers.Job) error {
	h.began <- j
	select {
	case err := <-h.let:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patient):
		t.Fatal("nothing received")
		panic("unreachable")
	}
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
