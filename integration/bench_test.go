package integration

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// The benchmarks run everything but Redis in one process; bench/peers has the
// servers in processes of their own, as in production.

// benchBridge runs a bridge on Redis, or on the memory store, for b.
func benchBridge(b *testing.B, useRedis bool, change ...func(*adapter.Config)) (url string) {
	b.Helper()
	url = testnats.Start(b).URL()
	cfg := adapter.Config{ID: "bench", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	var store job.Store = memdelay.New(memdelay.Options{MaxJobs: 50_000_000})
	storeByte := subjects.StoreLocal
	if useRedis {
		rs, err := redisdelay.Open(context.Background(), redisdelay.Options{URL: testredis.Start(b).URL(), BridgeID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		store, storeByte, cfg.Now = rs, subjects.StoreRedis, rs.Now
	}
	for _, c := range change {
		c(&cfg)
	}
	conns := adapter.Conns{Intake: benchConn(b, url, adapter.ConnOptions()...), Dispatch: benchConn(b, url, adapter.ConnOptions()...)}
	br, err := adapter.New(cfg, conns, store, storeByte)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- br.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		store.Close()
	})
	<-br.Ready()
	return url
}

func benchConn(b *testing.B, url string, opts ...nats.Option) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

var stores = []struct {
	name  string
	redis bool
}{{"redis", true}, {"memory", false}}

const producers = 64

// waiting has b.N requests made by producers that each wait for the answer.
func waiting(b *testing.B, url string, subject string) {
	payload := make([]byte, 256)
	conns := make([]*nats.Conn, 8)
	for i := range conns {
		conns[i] = benchConn(b, url)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range producers {
		nc := conns[i%len(conns)]
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := nc.Request(subject, payload, 10*time.Second); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

func BenchmarkRequestReply64(b *testing.B) {
	url := testnats.Start(b).URL()
	nc := benchConn(b, url)
	if _, err := nc.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond([]byte("ok")) }); err != nil {
		b.Fatal(err)
	}
	_ = nc.Flush()
	waiting(b, url, "echo")
}

func BenchmarkIntakeWaiting64(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) { waiting(b, benchBridge(b, s.redis), "delay.in.1d.bench.jobs") })
	}
}

func BenchmarkIntakePipelined(b *testing.B) {
	for _, s := range stores {
		for _, ids := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/ids=%v", s.name, ids), func(b *testing.B) {
				url := benchBridge(b, s.redis)
				pipelined(b, url, "delay.in.1d.bench.jobs", ids)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			})
		}
	}
}

// pipelined publishes b.N jobs with at most 4,096 unanswered.
func pipelined(b *testing.B, url, subject string, ids bool) {
	nc := benchConn(b, url)
	payload := make([]byte, 256)
	window := make(chan struct{}, 4096)
	inbox := nc.NewInbox()
	if _, err := nc.Subscribe(inbox, func(*nats.Msg) { <-window }); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for i := range b.N {
		window <- struct{}{}
		m := &nats.Msg{Subject: subject, Reply: inbox, Data: payload}
		if ids {
			m.Header = nats.Header{"Nats-Msg-Id": {fmt.Sprintf("4f2c0e9a-1111-4222-8333-%012d", i)}}
		}
		if err := nc.PublishMsg(m); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(window) {
		window <- struct{}{}
	}
	b.StopTimer()
}

// BenchmarkBurst delivers b.N jobs that are due at one instant.
func BenchmarkBurst(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			url := benchBridge(b, s.redis)
			due := time.Now().Add(2*time.Second + time.Duration(b.N)*20*time.Microsecond).Truncate(time.Millisecond)
			var got atomic.Int64
			var first atomic.Int64
			all := make(chan struct{})
			for range 4 {
				nc := benchConn(b, url)
				if _, err := nc.QueueSubscribe("bench.jobs", "w", func(m *nats.Msg) {
					first.CompareAndSwap(0, time.Now().UnixNano())
					_ = m.Respond(nil)
					if got.Add(1) == int64(b.N) {
						close(all)
					}
				}); err != nil {
					b.Fatal(err)
				}
				_ = nc.Flush()
			}
			pipelined(b, url, fmt.Sprintf("delay.at.%d.bench.jobs", due.UnixMilli()), false)
			if !time.Now().Before(due) {
				b.Fatal("storing took longer than until due")
			}
			time.Sleep(time.Until(due))
			b.ResetTimer()
			b.StartTimer()
			<-all
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(float64(first.Load()-due.UnixNano())/1e6, "first-ms")
		})
	}
}
