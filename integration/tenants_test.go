package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/nats-io/nats.go"
)

// tenancy is a bridge with the documented sets, a tenant orders who is limited by
// them, and a tenant billing, who is not.
type tenancy struct {
	*system
	told                  *notes // what the server tells the tenant orders
	log                   *notes // of the bridge
	shop, worker, billing *nats.Conn
}

func newTenancy(t *testing.T, flags ...string) *tenancy {
	t.Helper()
	users := account{"all": all}
	sets := documentedSets(t)
	bridge := sets[bridgeRole]
	bridge.Publish = append([]string{"billing.>"}, bridge.Publish...)
	users["bridge"], users["shop"], users["worker"], users["w1"] = bridge, sets[producerRole], sets[plainRole], sets[owningRole]
	s := &system{Checker: NewChecker(), t: t, nats: testnats.Start(t, testnats.Config(accounts(map[string]account{"A": users})))}
	ten := &tenancy{system: s, told: newNotes(), log: newNotes()}
	s.try(ten.log, "b1", "bridge", append([]string{"--store", "local", "--data-dir", ""}, flags...)...)(t)
	ten.shop, ten.worker = s.user(ten.told, "shop", "shop", "orders"), s.user(ten.told, "worker", "worker", "orders")
	ten.billing = s.user(newNotes(), "all", "all", "billing")
	return ten
}

// ask is a request of a job or of the admin API.
func (x *tenancy) ask(nc *nats.Conn, subject, body string, headers ...string) *nats.Msg {
	x.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	reply, err := nc.RequestMsg(m, patient)
	if err != nil {
		x.t.Fatalf("%s: %v", subject, err)
	}
	return reply
}

// The server refuses the tenant all subjects that are not its own.
func TestTenantSubjects(t *testing.T) {
	t.Parallel()
	x := newTenancy(t)
	forbidden := []string{
		"delay.in.1s.billing.x", "delay.at.1900000000.billing.x", "delay.to.billing.x", "delay.to.billing.orders.x",
		"delay.to.orders", "delay.in.orders.billing.x", "delay.api.billing.get.orders.x",
		"delay.ack.b1.x", "delay.hb.w1", "delay.bye.w1", "delay.ping.w1", "delay.job.w1", "delay.owner.w1",
		"delay.sys.state", "delay.sys.paused", "delay.sys.takeover", "delay.sys.api.b1", "delay.event.dead", "billing.x", "orders.x",
	}
	for _, verb := range []string{"get", "list", "cancel", "reschedule", "fire", "requeue", "purge", "pause", "resume", "stats", "workers", "bridges", "config"} {
		forbidden = append(forbidden, "delay.api."+verb, "delay.api."+verb+".billing.x", "delay.api."+verb+".billing.orders.x")
	}
	for _, subject := range forbidden {
		if err := x.shop.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		less := lacking{permitted: subject}
		x.told.await(t, "that refuses "+subject, less.names)
	}
	for _, subject := range []string{"billing.>", "delay.>", "delay.ack.>", "delay.job.>", "delay.event.>", "_INBOX.>", "_INBOX.billing.>", ">"} {
		if _, err := x.shop.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		x.told.await(t, "that refuses "+subject, func(line string) bool {
			return strings.Contains(line, "Subscription to") && strings.Contains(line, fmt.Sprintf("%q", subject))
		})
	}
}

// What the server lets through does nothing to a job of another tenant, and tells
// nothing of it.
func TestTenantCannotReachAJobOfAnother(t *testing.T) {
	t.Parallel()
	x := newTenancy(t)
	theirs := x.ask(x.billing, "delay.in.1h.billing.secret", "their payload", "Nats-Msg-Id", "invoice")
	look := func() string {
		return string(x.ask(x.billing, "delay.api.get.billing.secret", `{"id":"invoice"}`).Data)
	}
	before := look()
	if !strings.Contains(before, `"pending"`) {
		t.Fatalf("billing's job: %s", before)
	}
	refused := func(what string, reply *nats.Msg, code string) {
		t.Helper()
		if got := reply.Header.Get("Nats-Service-Error-Code"); got != code {
			t.Errorf("%s: code %q, want %s: %s", what, got, code, reply.Data)
		}
		for _, secret := range []string{"billing", "secret", "payload", "pending", dueOf(t, theirs)} {
			if bytes.Contains(reply.Data, []byte(secret)) {
				t.Errorf("%s tells %q: %s", what, secret, reply.Data)
			}
		}
	}
	for _, headers := range [][]string{{}, {"Delay-Replace", "true"}} {
		h := append([]string{"Nats-Msg-Id", "invoice"}, headers...)
		refused("the same id", x.ask(x.shop, "delay.in.1s.orders.x", "mine", h...), "409")
	}
	refused("Delay-Target", x.ask(x.shop, "delay.in.1s.orders.x", "", "Delay-Target", "orders.y"), "400")
	for _, subject := range []string{"delay.in.1s.orders.*", "delay.in.1s.orders.>", "delay.to.orders.>"} {
		if reply, err := x.shop.Request(subject, nil, 100*time.Millisecond); err == nil && reply.Header.Get("Nats-Service-Error-Code") != "400" {
			t.Errorf("%s is answered %s", subject, reply.Data)
		}
	}
	for _, verb := range []string{"get", "cancel", "fire", "requeue"} {
		for _, target := range []string{"orders.secret", "orders.billing.secret"} {
			refused(verb, x.ask(x.shop, "delay.api."+verb+"."+target, `{"id":"invoice"}`), "404")
		}
	}
	refused("reschedule", x.ask(x.shop, "delay.api.reschedule.orders.secret", `{"id":"invoice","in":"1s"}`), "404")
	for _, verb := range []string{"list", "purge", "pause", "resume"} {
		for _, target := range []string{"billing.x", "billing.>", ">", "*.secret"} {
			body, _ := json.Marshal(map[string]string{"target": target})
			reply := x.ask(x.shop, "delay.api."+verb+".orders.x", string(body))
			if code := reply.Header.Get("Nats-Service-Error-Code"); code != "400" && code != "403" {
				t.Errorf("%s with a target of another tenant: %s", verb, reply.Data)
			}
		}
	}
	for _, verb := range []string{"list", "stats", "purge", "pause"} {
		if reply := x.ask(x.shop, "delay.api."+verb+".orders.x", "{}"); bytes.Contains(reply.Data, []byte("billing")) || bytes.Contains(reply.Data, []byte("invoice")) {
			t.Errorf("%s tells of billing: %s", verb, reply.Data)
		}
	}
	if after := look(); after != before {
		t.Errorf("billing's job was %s, now %s", before, after)
	}
	if x.ask(x.billing, "delay.api.cancel.billing.secret", `{"id":"invoice"}`); strings.Contains(look(), "pending") {
		t.Error("its own tenant cannot cancel it")
	}
}

// A job that is over tells another tenant nothing either.
func TestTenantAndAnIDThatEnded(t *testing.T) {
	t.Parallel()
	x := newTenancy(t)
	sub := subscribed(t, x.billing, "billing.x", "")
	theirs := x.ask(x.billing, "delay.in.0s.billing.x", "", "Nats-Msg-Id", "invoice")
	if _, err := x.billing.Request(received(t, sub).Reply, nil, patient); err != nil {
		t.Fatal(err)
	}
	reply := x.ask(x.shop, "delay.in.1s.orders.x", "", "Nats-Msg-Id", "invoice")
	if bytes.Contains(reply.Data, []byte(dueOf(t, theirs))) || bytes.Contains(reply.Data, []byte(`"duplicate":true`)) {
		t.Errorf("the id of a job of billing that has ended is answered %s", reply.Data)
	}
}

func dueOf(t *testing.T, answer *nats.Msg) string {
	t.Helper()
	var a struct{ Due string }
	if err := json.Unmarshal(answer.Data, &a); err != nil || a.Due == "" {
		t.Fatalf("answer %s: %v", answer.Data, err)
	}
	return a.Due
}

// A worker cannot settle what it has not got: no token leads to another one.
func TestTenantCannotForgeTokens(t *testing.T) {
	t.Parallel()
	x := newTenancy(t)
	theirs := subscribed(t, x.billing, "billing.x", "")
	x.ask(x.billing, "delay.in.0s.billing.x", "", "Nats-Msg-Id", "id-b", "Delay-Ack-Wait", "1h")
	m := received(t, theirs)
	mine := subscribed(t, x.worker, "orders.x", "workers")
	x.ask(x.shop, "delay.in.0s.orders.x", "", "Nats-Msg-Id", "id-o", "Delay-Ack-Wait", "1h")
	own := received(t, mine).Reply
	at := strings.LastIndexByte(own, '.') + 1
	token, err := base64.RawURLEncoding.DecodeString(own[at:])
	if err != nil {
		t.Fatal(err)
	}
	forged := map[string][]byte{"another id": append(slices.Clone(token[:len(token)-1]), 'b')}
	for i := range len(token) - len("id-o") {
		f := slices.Clone(forged["another id"])
		f[i] ^= 1
		forged[fmt.Sprintf("another id, byte %d", i)] = f
	}
	for _, what := range slices.Sorted(maps.Keys(forged)) {
		for _, verb := range []string{"+ACK", "-NAK", "+TERM", "+WPI", `+CLAIM {"worker":"w1"}`} {
			reply, err := x.worker.Request(own[:at]+base64.RawURLEncoding.EncodeToString(forged[what]), []byte(verb), patient)
			if err != nil || !strings.HasPrefix(string(reply.Data), "-ERR") {
				t.Errorf("%s with %s is answered %q, %v", verb, what, data(reply), err)
			}
		}
	}
	if reply, err := x.billing.Request(m.Reply, []byte("+WPI"), patient); err != nil || len(reply.Data) > 0 {
		t.Errorf("billing's delivery is not its worker's any more: %q, %v", data(reply), err)
	}
}

// A bridge that may publish to billing must not do so for a tenant who may not.
func TestTenantCannotUseTheBridge(t *testing.T) {
	t.Parallel()
	x := newTenancy(t, "--replies-allow", "results.orders.>", "--workers-allow", "w1=orders.>")
	theirs := subscribed(t, x.billing, "billing.>", "")
	if reply := x.ask(x.shop, "delay.in.0s.orders.x", "", "Delay-Reply-To", "billing.create"); reply.Header.Get("Nats-Service-Error-Code") != "403" {
		t.Errorf("Delay-Reply-To of another tenant is answered %s", reply.Data)
	}
	x.ask(x.shop, "delay.in.1h.orders.x", "", "Delay-Reply-To", "results.orders.x")
	x.ask(x.shop, "delay.in.1h.orders.x", "", "Delay-Reply-To", "_INBOX.orders.x")
	sub := subscribed(t, x.worker, "orders.x", "workers")
	x.ask(x.shop, "delay.in.0s.orders.x", "")
	m := received(t, sub)
	w1 := x.user(x.told, "w1", "w1", "orders")
	err := errors.Join(
		x.shop.PublishRequest("delay.in.1h.orders.x", "billing.create", nil),
		x.shop.PublishRequest("delay.in.nonsense.orders.x", "billing.create", nil),
		x.worker.PublishRequest(m.Reply, "billing.create", []byte("nonsense")),
		x.worker.PublishRequest(m.Reply, "billing.create", []byte("+ACK")),
		w1.PublishRequest("delay.hb.w1", "billing.create", []byte("{}")),
		x.shop.PublishRequest("delay.api.list.orders.x", "billing.create", nil),
		x.shop.Flush(), x.worker.Flush(), w1.Flush())
	if err != nil {
		t.Fatal(err)
	}
	beat := `{"worker":"w1","queue":"workers","subjects":["billing.>"],"capacity":9,"free":9,"directed":true}`
	if reply := x.ask(w1, "delay.hb.w1", beat); !bytes.Contains(reply.Data, []byte(`"code":403`)) {
		t.Errorf("a worker of orders that wants billing's jobs is answered %s", reply.Data)
	}
	// Whatever is to come of that has come when this job has.
	x.ask(x.billing, "delay.in.0s.billing.own", "own")
	if m := received(t, theirs); m.Subject != "billing.own" {
		t.Errorf("billing got %q on %s", m.Data, m.Subject)
	}
}
