package adapter_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
)

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

// A heartbeat that a draining worker sent before its last completion does not make
// it one that takes jobs.
func TestHeartbeatBehindTheEndOfADrain(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 1, "t.x")
	w.beat()
	r.schedule("delay.in.0s.t.x", "p")
	m := receive(t, w.jobs)
	w.say("bye", tokens(m), nil)
	plain, other := r.worker("t.x"), r.owner("w2", 1, "t.y")
	w.tell("hb", m)
	if answer := w.request(m, ""); answer != "" {
		t.Fatal(answer)
	}
	other.beat() // the heartbeat has been taken in
	r.schedule("delay.in.0s.t.x", "p")
	r.done(promptly(t, plain))
}
