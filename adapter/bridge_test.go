package adapter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

func TestDeliverOnTimeAndComplete(t *testing.T) {
	r := newRig(t)
	work := r.worker("orders.remind")
	a := r.schedule("delay.in.150ms.orders.remind", "hello", "X-User", "kept", "x-user", "other spelling")
	m := receive(t, work)
	if late := time.Since(a.Due); late < 0 || late > time.Second {
		t.Errorf("delivered %v after due", late)
	}
	if string(m.Data) != "hello" || m.Header.Get("X-User") != "kept" || m.Header.Get("x-user") != "other spelling" {
		t.Errorf("payload %q, headers %v", m.Data, m.Header)
	}
	want := map[string]string{"Nats-Msg-Id": a.ID, "Delay-Job-Id": a.ID, "Delay-Attempt": "1", "Delay-Ack-Wait": "30s",
		"Delay-Due": a.Due.Format("2006-01-02T15:04:05.000000Z"), "Delay-Token": m.Reply[strings.LastIndexByte(m.Reply, '.')+1:]}
	for k, v := range want {
		if got := m.Header.Get(k); got != v {
			t.Errorf("%s: %q, want %q", k, got, v)
		}
	}
	if answer := r.settle(m, ""); answer != "" {
		t.Errorf("completion answered %q", answer)
	}
	if got := r.state(a.ID).State; got != job.Done {
		t.Errorf("state %q", got)
	}
	if answer := r.settle(m, "+ACK"); answer != "" {
		t.Errorf("the same completion again answered %q", answer)
	}
	if answer := r.settle(m, "-NAK"); !strings.HasPrefix(answer, `-ERR {"code":409`) {
		t.Errorf("NAK after completion answered %q", answer)
	}
}
