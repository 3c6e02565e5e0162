package client

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/internal/testnats"
)

// bulkOf returns a bulk of n items on a system where nobody answers.
func bulkOf(t *testing.T, n int) *bulk {
	t.Helper()
	nc, err := nats.Connect(testnats.Start(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c, err := New(nc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := c.newBulk(n)
	t.Cleanup(b.ticker.Stop)
	return b
}

func receiptFor(item int) answer {
	return answer{item, &nats.Msg{Data: []byte(`{"stream":"DELAY","id":"a","seq":1}`)}}
}

// TestWindow: 4096 items are on their way at most, so the answer to one is waited for
// before the next.
func TestWindow(t *testing.T) {
	const most = 4096
	b := bulkOf(t, most+1)
	item := &Item{Job: Job{Target: "x"}}
	for i := range most {
		b.send(t.Context(), i, item)
	}
	if len(b.pending) != most {
		t.Fatalf("%d on their way, want %d without a wait", len(b.pending), most)
	}
	b.answers <- receiptFor(7)
	b.send(t.Context(), most, item)
	if len(b.pending) != most || b.pending[7] != nil || b.results[7].Receipt.ID != "a" {
		t.Errorf("%d on their way with %d answers not looked at", len(b.pending), len(b.answers))
	}
}

// TestAnswersThatWaitCount: sending may take longer than the timeout, with answers
// that came meanwhile.
func TestAnswersThatWaitCount(t *testing.T) {
	b := bulkOf(t, 2)
	for i := range 2 {
		b.send(t.Context(), i, &Item{Job: Job{Target: "x"}})
	}
	b.last = time.Now().Add(-time.Hour)
	b.answers <- receiptFor(0)
	b.look(context.Background())
	if b.results[0].Receipt.ID != "a" || b.results[0].Err != nil || b.results[1].Err != nil || len(b.pending) != 1 {
		t.Errorf("results %+v, %d on their way; want the answer, and the other waited for", b.results, len(b.pending))
	}
}
