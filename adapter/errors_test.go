package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// publishers publishes as each kind of client does. Each returns the codes of
// the refusal, zero when there is none.
var publishers = map[string]func(*rig, *nats.Msg) (code, errCode int){
	"Request":   (*rig).refusedRequest,
	"JetStream": (*rig).refusedLegacy,
	"jetstream": (*rig).refusedJetStream,
}

// refusedRequest reads the refusal from the body and checks that the headers
// say the same.
func (r *rig) refusedRequest(m *nats.Msg) (code, errCode int) {
	r.t.Helper()
	reply, err := r.nc.RequestMsg(m, patient)
	if err != nil {
		r.t.Errorf("Request: %v", err)
		return 0, 0
	}
	a := decodeAck(r.t, reply)
	if a.Error == nil {
		return 0, 0
	}
	if h := reply.Header; h.Get("Nats-Service-Error-Code") != strconv.Itoa(a.Error.Code) || h.Get("Nats-Service-Error") != a.Error.Description {
		r.t.Errorf("headers %v differ from the body %s", h, reply.Data)
	}
	if a.Stream != "DELAY" || a.Error.Description == "" || a.Seq != 0 || a.ID != "" {
		r.t.Errorf("refusal %s", reply.Data)
	}
	return a.Error.Code, a.Error.ErrCode
}

func (r *rig) refusedLegacy(m *nats.Msg) (code, errCode int) {
	r.t.Helper()
	js, err := r.nc.JetStream()
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = js.PublishMsg(m, nats.AckWait(patient))
	var e *nats.APIError
	if errors.As(err, &e) {
		return e.Code, int(e.ErrorCode)
	}
	if err != nil {
		r.t.Errorf("JetStream: %v", err)
	}
	return 0, 0
}

func (r *rig) refusedJetStream(m *nats.Msg) (code, errCode int) {
	r.t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	_, err = js.PublishMsg(ctx, m)
	var e *jetstream.APIError
	if errors.As(err, &e) {
		return e.Code, int(e.ErrorCode)
	}
	if err != nil {
		r.t.Errorf("jetstream: %v", err)
	}
	return 0, 0
}

// refused checks that every client sees m refused with these codes.
func (r *rig) refused(want *job.Error, m *nats.Msg) {
	r.t.Helper()
	for name, publish := range publishers {
		if code, errCode := publish(r, m); code != want.Code || errCode != want.ErrCode {
			r.t.Errorf("%s: %q %v: refused with %d/%d, want %d/%d", name, cut(m.Subject), m.Header, code, errCode, want.Code, want.ErrCode)
		}
	}
}

func cut(s string) string { return s[:min(len(s), 80)] }

func TestRefusedSchedules(t *testing.T) {
	r := newRig(t)
	for _, c := range [][]string{
		{"delay.in.soon.t.x"},
		{"delay.in.90.t.x"},
		{"delay.in.s.t.x"},
		{"delay.in.5y.t.x"},
		{"delay.in.1.5s.t.x"},
		{"delay.in.-5s.t.x"},
		{"delay.in.3654d.t.x"},
		{"delay.in.15250w15250w.t.x"},
		{"delay.in.99999999999999999999w.t.x"},
		{"delay.at.1.t.x"},
		{"delay.at.20261301T000000Z.t.x"},
		{"delay.at.tomorrow.t.x"},
		{"delay.at.-170000000.t.x"},
		{"delay.at.9999999999.t.x"},
		{"delay.at.9999999999999.t.x"},
		{"delay.at.99991231T235959Z.t.x"},
		{"delay.to.t.x"},
		{"delay.to.t.x", "Delay-Max-Attempts", "3"},
		{"delay.to.t.x", "Delay-In", ""},
		{"delay.to.t.x", "Delay-In", "soon"},
		{"delay.to.t.x", "Delay-In", "-1s"},
		{"delay.to.t.x", "Delay-In", "87673h"},
		{"delay.to.t.x", "Delay-In", "9223372036854775807s"},
		{"delay.to.t.x", "Delay-In", "1e3s"},
		{"delay.to.t.x", "Delay-At", "2026-11-30"},
		{"delay.to.t.x", "Delay-At", "2026-11-30T09:30:00"},
		{"delay.to.t.x", "Delay-At", "2026-02-30T09:30:00Z"},
		{"delay.to.t.x", "Delay-At", "1969-12-31T23:59:59Z"},
		{"delay.to.t.x", "Delay-At", "9999-12-31T23:59:59Z"},
		{"delay.to.t.x", "Delay-In", "1s", "Delay-In", "1s"},
		{"delay.to.t.x", "Delay-In", "1s", "delay-in", "1s"},
		{"delay.to.t.x", "Delay-In", "1s", "Delay-At", "2026-11-30T09:30:00Z"},
		{"delay.to.t.x", "Delay-At", "2026-11-30T09:30:00Z", "Nats-Schedule", "@at 2026-11-30T09:30:00Z"},
		{"delay.in.1s.t.x", "Delay-In", "1s"},
		{"delay.in.1s.t.x", "Delay-At", "2026-11-30T09:30:00Z"},
		{"delay.at.1790000000.t.x", "Nats-Schedule", "@at 2026-11-30T09:30:00Z"},
		{"delay.to.t.x", "Nats-Schedule", "@every 5m"},
		{"delay.to.t.x", "Nats-Schedule", "@daily"},
		{"delay.to.t.x", "Nats-Schedule", "0 */5 * * * *"},
		{"delay.to.t.x", "Nats-Schedule", "@at"},
		{"delay.to.t.x", "Nats-Schedule", "@at soon"},
		{"delay.to.t.x", "Nats-Schedule", "2026-11-30T09:30:00Z"},
		{"delay.in.1s.t.x", "Nats-Schedule-TTL", "5m"},
		{"delay.in.1s.t.x", "Nats-Schedule-Target", "t.y"},
		{"delay.in.1s.t.x", "nats-schedule-source", "t.y"},
		{"delay.in.1s.t.x", "Nats-Schedule-Time-Zone", "UTC"},
	} {
		r.refused(job.ErrSchedule, message(c[0], "p", c[1:]...))
	}
	r.storesNothing()
}

// storesNothing checks that no job is pending.
func (r *rig) storesNothing() {
	r.t.Helper()
	p, err := r.store.List(context.Background(), job.Query{State: job.Pending, Limit: 10})
	if err != nil || len(p.Jobs) > 0 {
		r.t.Errorf("stored in spite of the refusal: %v, error %v", p.Jobs, err)
	}
}

func TestRefusedTargets(t *testing.T) {
	r := newRig(t)
	for _, target := range []string{"$SYS.x", "$JS.API.x", "_INBOX.x", "_R_.x", "_GR_.x", "delay.in.1s.t.x", "delay", "t.*", "t.>", "t.\x01x",
		"t.\x7f", strings.Repeat("a", 256)} {
		r.refused(job.ErrTarget, message("delay.in.1s."+target, "p"))
	}
	for _, subject := range []string{"delay.in.1s", "delay.at.1790000000"} {
		r.refused(job.ErrTarget, message(subject, "p"))
	}
	r.storesNothing()
}

func TestTargetAtItsLimits(t *testing.T) {
	r := newRig(t)
	for _, target := range []string{strings.Repeat("a", 255), "delayed.x", "a$b", "_INBOXES.x", "größe"} {
		work := r.worker(target)
		r.schedule("delay.in.0s."+target, "p")
		r.done(receive(t, work))
	}
}

func TestNoTargetIsNeverStored(t *testing.T) {
	r := newRig(t)
	for _, subject := range []string{"delay", "delay.in", "delay.at", "delay.to", "delay.on.1s.t"} {
		if _, err := r.nc.Request(subject, nil, patient); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s: %v, want no responders", subject, err)
		}
	}
}

func TestTargetsAllow(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.AllowTargets = []string{"orders.*", "billing.>"} }))
	for _, target := range []string{"orders", "orders.a.b", "other.x", "billing"} {
		r.refused(job.ErrForbidden, message("delay.in.1s."+target, "p"))
	}
	r.refused(job.ErrTarget, message("delay.in.1s.$SYS.x", "p"))
	r.refused(job.ErrForbidden, message("delay.in.1s.orders.a", "p", "Delay-Reply-To", "other.x"))
	r.storesNothing()
	for _, target := range []string{"orders.a", "billing.a.b"} {
		r.schedule("delay.in.1h."+target, "p", "Delay-Reply-To", "_INBOX.x")
		r.schedule("delay.in.1h."+target, "p", "Delay-Reply-To", "orders.result")
	}
}

func TestRefusedHeaders(t *testing.T) {
	r := newRig(t)
	for _, c := range [][]string{
		{"Nats-Msg-Id", ""},
		{"Nats-Msg-Id", strings.Repeat("i", 256)},
		{"Nats-Msg-Id", "a", "Nats-Msg-Id", "b"},
		{"Nats-Msg-Id", "a", "nats-msg-id", "b"},
		{"Delay-Replace", "yes please", "Nats-Msg-Id", "a"},
		{"Delay-Replace", "", "Nats-Msg-Id", "a"},
		{"Delay-Replace", "true"},
		{"Delay-Max-Attempts", "-1"},
		{"Delay-Max-Attempts", "1.5"},
		{"Delay-Max-Attempts", "many"},
		{"Delay-Max-Attempts", "99999999999"},
		{"Delay-Max-Attempts", "1", "delay-max-attempts", "2"},
		{"Delay-Ack-Wait", "0s"},
		{"Delay-Ack-Wait", "-1s"},
		{"Delay-Ack-Wait", "5"},
		{"Delay-Ack-Wait", "50d"},
		{"Delay-Backoff", ""},
		{"Delay-Backoff", "1s,,2s"},
		{"Delay-Backoff", "1s,-2s"},
		{"Delay-Backoff", "1s,20y"},
		{"Delay-Backoff", "3654d"},
		{"Delay-Backoff", strings.Repeat("1s,", 32) + "1s"},
		{"Delay-Expires", "-1s"},
		{"Delay-Expires", "soon"},
		{"Delay-Expires", "2026-11-30"},
		{"Delay-Ack", "both"},
		{"Delay-Ack", ""},
		{"Delay-Reply-To", ""},
		{"Delay-Reply-To", "a.*"},
		{"Delay-Reply-To", "a..b"},
		{"Delay-Reply-To", "$SYS.x"},
		{"Delay-Reply-To", "delay.in.1s.x"},
		{"Delay-Reply-To", "_R_.x"},
		{"Delay-Durability", "forever"},
		{"Delay-Inn", "1s"},
		{"Delay-", "1s"},
		{"delay-ackwait", "1s"},
		{"Delay-Job-Id", "x"},
		{"Delay-Token", "x"},
	} {
		r.refused(job.ErrHeader, message("delay.in.1s.t.x", "p", c...))
	}
	r.storesNothing()
}

// TestRefusedRawHeaders sends what clients of other languages may: header
// blocks that nats.go would not write.
func TestRefusedRawHeaders(t *testing.T) {
	r := newRig(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.srv.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	inbox := r.nc.NewRespInbox()
	replies := r.listen(inbox)
	fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true}\r\n")
	publish := func(header string) pubAck {
		const subject, payload = "delay.in.1h.t.x", "p"
		fmt.Fprintf(conn, "HPUB %s %s %d %d\r\n%s%s\r\n", subject, inbox, len(header), len(header)+len(payload), header, payload)
		return decodeAck(t, receive(t, replies))
	}
	for _, header := range []string{
		"NATS/1.0\r\nno colon\r\n\r\n",
		"NATS/1.0\r\nDelay-Max-Attempts: 1",
		"HTTP/1.1\r\nA: b\r\n\r\n",
		"NATS/1.0\r\nodd name: x\r\n\r\n",
		"NATS/1.0\r\nname(): x\r\n\r\n",
		"NATS/1.0\r\nn\u00e4me: x\r\n\r\n",
		"NATS/1.0\r\nDelay-Max-Attempts : 1\r\n\r\n",
		"NATS/1.0\r\nA: b\rc\r\n\r\n",
	} {
		if a := publish(header); a.Error == nil || a.Error.ErrCode != job.ErrHeader.ErrCode {
			t.Errorf("%q: answered %+v", header, a)
		}
	}
	r.storesNothing()
	if a := publish("NATS/1.0\r\na: b\r\n\r\n"); a.Error != nil {
		t.Errorf("refused: %+v", *a.Error)
	}
}

func TestTooLarge(t *testing.T) {
	const limit = 8192
	r := newRig(t, withNATS(testnats.MaxPayload(limit)))
	r.refused(job.ErrTooLarge, message("delay.in.1s.t.x", strings.Repeat("p", limit-100)))
	r.refused(job.ErrTooLarge, message("delay.in.1s.t.x", "p", "X", strings.Repeat("h", limit-100)))
	r.storesNothing()

	// What is accepted can be delivered, up to the last byte; and the limit is
	// not more than 2 KiB below what the server takes.
	id := strings.Repeat("i", 255)
	work := r.worker("t.x")
	accepted := 0
	for size := limit - 3072; size < limit-300; size += 97 {
		a := r.request("delay.in.0s.t.x", strings.Repeat("p", size), "Nats-Msg-Id", id, "Delay-Ack-Wait", "1h1m1.001s")
		if a.Error != nil {
			continue
		}
		accepted = size
		r.done(receive(t, work))
		if _, err := r.store.Cancel(t.Context(), 0, job.ByIDs(id)); err != nil {
			t.Fatal(err)
		}
		id = id[1:]
	}
	if accepted < limit-2048-2*255 {
		t.Errorf("the largest payload accepted has %d bytes of %d", accepted, limit)
	}
}
