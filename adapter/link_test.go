package adapter_test

import (
	"bytes"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

// wires makes the connections of a bridge, which can be made to lose what is
// sent on them.
type wires struct {
	mu   sync.Mutex
	made []*wire
}

func (w *wires) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made = append(w.made, &wire{Conn: c})
	return w.made[len(w.made)-1], nil
}

func (w *wires) bridge(c *rigConfig) { c.user = append(c.user, nats.SetCustomDialer(w)) }

// swallow makes the newest connection, which is the dispatching one, lose what
// is sent on it from now on.
func (w *wires) swallow() *wire {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.made[len(w.made)-1]
	last.mu.Lock()
	defer last.mu.Unlock()
	last.deaf = true
	return last
}

type wire struct {
	net.Conn
	mu   sync.Mutex
	deaf bool
	lost []byte
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.deaf {
		return w.Conn.Write(p)
	}
	w.lost = append(w.lost, p...)
	return len(p), nil
}

// hasLost reports how often text was sent and lost.
func (w *wire) hasLost(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Count(w.lost, []byte(text))
}

// TestAckNoneOnADyingConnection publishes jobs that nobody acknowledges on a
// connection that loses them, while the client waits for an answer of the server
// to what it sent before. They are confirmed by no answer on the next connection.
func TestAckNoneOnADyingConnection(t *testing.T) {
	const jobs = 10
	var made wires
	r := newRig(t, made.bridge)
	before, work := r.worker("t.before"), r.worker("t.x")
	dying := made.swallow()
	r.schedule("delay.in.0s.t.before", "p")
	eventually(t, "an answer of the server is waited for", func() bool { return dying.hasLost("HPUB t.before ") == 1 && dying.hasLost("PING\r\n") == 1 })
	ids := r.scheduleAll(jobs, always("delay.in.0s.t.x"), strconv.Itoa, "Delay-Ack", "none")
	eventually(t, "all jobs are lost", func() bool { return dying.hasLost("HPUB t.x ") == jobs })
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, id := range ids {
		left[id] = true
	}
	for len(left) > 0 {
		m := receive(t, work)
		delete(left, m.Header.Get("Delay-Job-Id"))
	}
	for _, id := range ids {
		r.becomes(id, job.Done)
	}
	r.done(receive(t, before))
}
