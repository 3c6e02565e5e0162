package workers_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

// BenchmarkDirected runs jobs with confirmed completion. Server, bridge and
// worker share the process: BenchmarkPlainReply is what the first two cost.
func BenchmarkDirected(b *testing.B) {
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 256, 0
	srv := testnats.Start(b)
	bridge := newBridge(b, srv)
	w := run(b, bridge, connect(b, srv), cfg, done)
	bridge.down() // the fast bridge below answers instead
	pump(b, srv, "delay.job."+w.Name())
}

// BenchmarkQueueGroup is the same with jobs that are claimed first.
func BenchmarkQueueGroup(b *testing.B) {
	cfg := config()
	cfg.Concurrency, cfg.Heartbeat = 256, 0
	srv := testnats.Start(b)
	bridge := newBridge(b, srv)
	run(b, bridge, connect(b, srv), cfg, done)
	bridge.down()
	pump(b, srv, "t.x")
}

// BenchmarkPlainReply is the same with a subscription that answers at once.
func BenchmarkPlainReply(b *testing.B) {
	srv := testnats.Start(b)
	nc := connect(b, srv)
	_, err := nc.Subscribe("plain", func(m *nats.Msg) { nc.PublishRequest(m.Reply, "nobody", []byte("+ACK")) })
	if err != nil {
		b.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		b.Fatal(err)
	}
	pump(b, srv, "plain")
}

// pump delivers b.N jobs to subject, 1,000 at a time, and answers completions.
func pump(b *testing.B, srv *testnats.Server, subject string) {
	const window = 1000
	nc := connect(b, srv)
	room := make(chan struct{}, window)
	sub, err := nc.Subscribe("delay.ack.b1.*", func(m *nats.Msg) {
		nc.Publish(m.Reply, nil)
		if !strings.HasPrefix(string(m.Data), "+CLAIM") {
			<-room
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	defer sub.Unsubscribe()
	m := &nats.Msg{Subject: subject, Data: []byte(strings.Repeat("x", 256)), Header: nats.Header{
		"Nats-Msg-Id": {"abcdefghijkl"}, "Delay-Job-Id": {"abcdefghijkl"}, "Delay-Due": {"2026-11-30T09:30:00.000001Z"},
		"Delay-Attempt": {"1"}, "Delay-Ack-Wait": {"30s"}, "Delay-Target": {"t.x"},
	}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		room <- struct{}{}
		token := "tok" + strings.Repeat("x", 40) + strconv.Itoa(i)
		m.Reply = "delay.ack.b1." + token
		m.Header["Delay-Token"] = []string{token}
		if err := nc.PublishMsg(m); err != nil {
			b.Fatal(err)
		}
	}
	for range window { // all are answered
		room <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkHeartbeat is the worker's share of a heartbeat with ten jobs.
func BenchmarkHeartbeat(b *testing.B) {
	h := newHold()
	bridge, w := rig(b, config(), h.handle)
	for range 10 {
		bridge.direct(w, "p")
	}
	bridge.beatThat("all", func(h beat) bool { return len(h.Running) == 10 })
	b.ReportAllocs()
	for b.Loop() {
		w.Beat()
	}
}
