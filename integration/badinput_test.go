package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// heartbeat is what a worker says of itself.
type heartbeat struct {
	Worker   string   `json:"worker"`
	Queue    string   `json:"queue"`
	Subjects []string `json:"subjects"`
	Capacity int      `json:"capacity"`
	Free     int      `json:"free"`
	Directed bool     `json:"directed"`
	Running  []string `json:"running"`
	Done     []string `json:"done"`
}

func (h heartbeat) json() []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // it consists of strings and numbers
	}
	return b
}

// refusal is the answer to what is wrong.
type refusal struct {
	Error struct {
		Code    int
		ErrCode int `json:"err_code"`
	}
}

// Heartbeats and farewells that make no sense are answered with an error and
// counted, and change nothing.
func TestBadHeartbeats(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		w.start()
		owned := w.own("w1") // a delivery that w1 owns, and lists in no heartbeat
		token := owned.Header.Get("Delay-Token")
		good := heartbeat{Worker: "w1", Queue: "workers", Subjects: []string{"other.work"}, Capacity: 1}
		many := good
		for range 10_000 {
			many.Running = append(many.Running, token)
		}
		other, full, over, wild := good, good, good, good
		other.Worker, full.Capacity, over.Free, wild.Subjects = "w2", -1, 2, []string{"a..b"}
		garbage := good
		garbage.Done = []string{"no-token"}
		bad := []struct {
			name, subject string
			body          []byte
		}{
			{"10,000 tokens", "w1", many.json()},
			{"another worker", "w1", other.json()},
			{"negative capacity", "w1", full.json()},
			{"more free than capacity", "w1", over.json()},
			{"impossible subject", "w1", wild.json()},
			{"impossible token", "w1", garbage.json()},
			{"broken JSON", "w1", []byte(`{"worker":"w1"`)},
			{"no JSON", "w1", []byte("\x00\xff")},
			{"nothing", "w1", nil},
			{"a number", "w1", []byte("17")},
			{"wrong type", "w1", []byte(`{"worker":"w1","running":"` + token + `"}`)},
			{"name with a space", "w$1", []byte(`{"worker":"w$1","subjects":["x"]}`)},
			{"name too long", strings.Repeat("w", 65), []byte(`{"worker":"` + strings.Repeat("w", 65) + `","subjects":["x"]}`)},
		}
		before := w.refused()
		n := 0
		for _, verb := range []string{"hb", "bye"} {
			for _, b := range bad {
				n++
				reply, err := w.nc.Request("delay."+verb+"."+b.subject, b.body, patient)
				if err != nil {
					t.Fatalf("%s, %s: %v", verb, b.name, err)
				}
				var r refusal
				if err := json.Unmarshal(reply.Data, &r); err != nil || r.Error.Code != 400 || r.Error.ErrCode != 20400 {
					t.Errorf("%s, %s: answered %q, want 400/20400", verb, b.name, reply.Data)
				}
			}
		}
		if got := w.refused() - before; got != float64(n) {
			t.Errorf("%v counted as refused, want %d", got, n)
		}
		if body, err := w.settle(w.nc, owned, ""); err != nil || body != "" {
			t.Errorf("the owner's completion afterwards: %q, %v", body, err)
		}
		w.close(Once)
	})
}

// refused is how many messages of workers were refused.
func (w *works) refused() (n float64) {
	w.t.Helper()
	w.eventually("metrics", func(context.Context) (ok bool, err error) {
		n, err = w.bridge.metric(refusedMetric)
		return err == nil, err
	})
	return n
}

const refusedMetric = "delaybridge_worker_messages_refused_total"

// own has a worker of that name take a job from the queue group and claim it.
func (w *works) own(worker string) *nats.Msg {
	w.t.Helper()
	got := make(chan *nats.Msg, 10)
	target := "own." + worker
	w.worker(target, func(m *nats.Msg, _ Delivery) { got <- m })
	w.send(0, target)
	m := w.message(got)
	if a := w.claim(m.Reply, worker); !strings.HasPrefix(a, `+OK {"attempt":1,"ack_wait_ms":30000`) {
		w.t.Fatalf("claim by %s: %q", worker, a)
	}
	return m
}

// claim asks for a delivery to be owned by the worker.
func (w *works) claim(reply, worker string) string {
	w.t.Helper()
	m, err := w.nc.Request(reply, fmt.Appendf(nil, `+CLAIM {"worker":%q}`, worker), patient)
	if err != nil {
		w.t.Fatalf("claim: %v", err)
	}
	return string(m.Data)
}

// Claims of what is not to be had are refused, and change nothing.
func TestBadClaims(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		w := newWorks(t, kind)
		w.start()
		owned := w.own("w1")
		ended := w.own("w2")
		if body, err := w.settle(w.nc, ended, ""); err != nil || body != "" {
			t.Fatalf("completion: %q, %v", body, err)
		}
		old, now := w.retried("w3")
		unknown := w.forged(owned)

		for _, c := range []struct {
			name, reply, worker, want string
		}{
			{"a foreign job", owned.Reply, "w9", `-ERR {"code":409,`},
			{"an old attempt", old.Reply, "w3", `-ERR {"code":409,`},
			{"an unknown job", unknown, "w1", `-ERR {"code":404,`},
			{"a job that ended", ended.Reply, "w2", `-ERR {"code":40`}, // unknown or stale
			{"a wrong name", owned.Reply, "w 1", `-ERR {"code":400,`},
			{"no name", owned.Reply, "", `-ERR {"code":400,`},
			{"its own job again", owned.Reply, "w1", `+OK {"attempt":1,`},
			{"its own further attempt", now.Reply, "w3", `+OK {"attempt":2,`},
		} {
			if a := w.claim(c.reply, c.worker); !strings.HasPrefix(a, c.want) {
				t.Errorf("claim of %s: %q, want %s...", c.name, a, c.want)
			}
		}
		for _, body := range []string{"+CLAIM", "+CLAIM {", "+CLAIM w1", `+CLAIM ["w1"]`} {
			m, err := w.nc.Request(owned.Reply, []byte(body), patient)
			if err != nil || !strings.HasPrefix(string(m.Data), `-ERR {"code":400,`) {
				t.Errorf("%s: %q, %v, want 400", body, m.Data, err)
			}
		}
		for _, m := range []*nats.Msg{owned, now} {
			if body, err := w.settle(w.nc, m, ""); err != nil || body != "" {
				t.Errorf("the owner's completion afterwards: %q, %v", body, err)
			}
		}
		w.close(Again)
	})
}

// retried has a worker refuse a job, and returns its first and second delivery.
func (w *works) retried(worker string) (old, now *nats.Msg) {
	w.t.Helper()
	got := make(chan *nats.Msg, 10)
	target := "retried." + worker
	w.worker(target, func(m *nats.Msg, d Delivery) {
		if d.Attempt == 1 {
			w.Settled(d, Nacked)
			_ = m.Respond([]byte("-NAK 10ms")) // it shows when it does not come again
		}
		got <- m
	})
	w.send(0, target)
	return w.message(got), w.message(got)
}

// forged returns the reply subject of a delivery that never was.
func (w *works) forged(m *nats.Msg) string {
	w.t.Helper()
	text := m.Header.Get("Delay-Token")
	token, err := subjects.ParseToken(text)
	if err != nil {
		w.t.Fatal(err)
	}
	token.ID, token.Generated = "nobody", false
	return strings.TrimSuffix(m.Reply, text) + string(subjects.AppendToken(nil, token))
}
