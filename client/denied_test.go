package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/delaybridge/delaybridge/client"
	"github.com/delaybridge/delaybridge/internal/testnats"
)

// TestDenied: what the server refuses is said at once, with the subject, though NATS
// itself lets the caller wait for an answer.
func TestDenied(t *testing.T) {
	srv := testnats.Start(t, testnats.Config(`authorization { users = [
		{ user: bridge, password: p }
		{ user: orders, password: p, permissions: { publish: ["delay.to.orders.>", "delay.api.*.orders.x"] } }
		{ user: deaf, password: p, permissions: { publish: ["delay.to.>"], subscribe: ["x"] } } ] }`))
	answerer := connect(t, srv, nats.UserInfo("bridge", "p"))
	if _, err := answerer.Subscribe("delay.>", func(m *nats.Msg) { _ = m.Respond([]byte(`{"id":"a","seq":1}`)) }); err != nil {
		t.Fatal(err)
	}
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	orders := newClient(t, connect(t, srv, nats.UserInfo("orders", "p"), quiet), client.Options{Timeout: 5 * time.Second})
	ctx := context.Background()
	subject := func(err error) string {
		t.Helper()
		var denied *client.PermissionError
		if !errors.As(err, &denied) || !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), denied.Subject) {
			t.Errorf("%v is no PermissionError", err)
			return ""
		}
		return denied.Subject
	}
	began := time.Now()
	for range 2 { // the second is no leftover of the first
		if _, err := orders.Schedule(ctx, client.Job{Target: "billing.x"}, 0); subject(err) != "delay.to.billing.x" {
			t.Errorf("%v", err)
		}
		if _, err := orders.Schedule(ctx, client.Job{Target: "orders.x"}, 0); err != nil {
			t.Errorf("allowed: %v", err)
		}
	}
	if _, err := orders.Get(ctx, "a"); subject(err) != "delay.api.get" {
		t.Errorf("%v", err)
	}
	if scoped, err := orders.ForTarget("orders.x"); err != nil {
		t.Error(err)
	} else if _, err := scoped.Get(ctx, "a"); err != nil {
		t.Errorf("allowed: %v", err)
	}
	mixed := append(items(5000, "billing.x"), items(3, "orders.x")...)
	results, err := orders.ScheduleMany(ctx, mixed)
	if subject(err) != "delay.to.billing.x" || results[5001].Err != nil {
		t.Errorf("many: %v, %v", err, results[5001])
	}
	deaf := newClient(t, connect(t, srv, nats.UserInfo("deaf", "p"), quiet), client.Options{Timeout: 5 * time.Second})
	for range 2 {
		if _, err := deaf.Schedule(ctx, client.Job{Target: "orders.x"}, 0); !strings.HasPrefix(subject(err), "_INBOX.") {
			t.Errorf("%v", err)
		}
	}
	if _, err := deaf.ScheduleMany(ctx, items(2, "orders.x")); !strings.HasPrefix(subject(err), "_INBOX.") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("refusals took %v, near the timeout", took)
	}
}

// TestOldRefusals: what was refused before a call says nothing of it, though its
// answer is late.
func TestOldRefusals(t *testing.T) {
	users := func(allowed string) testnats.Option {
		return testnats.Config(`authorization { users = [ { user: bridge, password: p }
			{ user: u, password: p, permissions: { publish: ["` + allowed + `"] } } ] }`)
	}
	srv := testnats.Start(t, users("other"))
	answerer := connect(t, srv, nats.UserInfo("bridge", "p"))
	if _, err := answerer.Subscribe("delay.to.x", func(m *nats.Msg) {
		time.AfterFunc(300*time.Millisecond, func() { _ = m.Respond([]byte(`{"id":"a","seq":1}`)) })
	}); err != nil {
		t.Fatal(err)
	}
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	nc := connect(t, srv, nats.UserInfo("u", "p"), quiet)
	c := newClient(t, nc, client.Options{})
	var denied *client.PermissionError
	if _, err := c.Schedule(t.Context(), client.Job{Target: "x"}, 0); !errors.As(err, &denied) {
		t.Fatalf("before it is allowed: %v", err)
	}
	srv.Reload(t, users("delay.to.x"))
	if nc.LastError() == nil {
		t.Fatal("the server has ended the connection, so nothing old is left of it")
	}
	if _, err := c.Schedule(t.Context(), client.Job{Target: "x"}, 0); err != nil {
		t.Errorf("one: %v", err)
	}
	if _, err := c.ScheduleMany(t.Context(), items(2, "x")); err != nil {
		t.Errorf("many: %v", err)
	}
}

func TestTraceContextTravels(t *testing.T) {
	srv := testnats.Start(t)
	nc := connect(t, srv)
	sub, err := nc.SubscribeSync("delay.to.x")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	member, err := baggage.NewMember("tenant", "a")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	traced := baggage.ContextWithBaggage(trace.ContextWithSpanContext(context.Background(), span), bag)
	c := newClient(t, nc, client.Options{Timeout: time.Millisecond,
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})})
	const old = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const want = "00-01000000000000000000000000000000-0200000000000000-01"
	j := client.Job{Target: "x", Header: nats.Header{"Traceparent": {old}, "tracestate": {"a=b"}, "Colour": {"red"}}}
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		lower string // the traceparent that is sent
	}{{"traced", traced, want}, {"not traced", context.Background(), ""}} {
		_, _ = c.Schedule(tt.ctx, j, time.Second) // nobody answers
		m, err := sub.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header["traceparent"] == nil != (tt.lower == "") || tt.lower != "" && m.Header["traceparent"][0] != tt.lower {
			t.Errorf("%s: traceparent %v", tt.name, m.Header)
		}
		if tt.lower != "" && (len(m.Header["Traceparent"]) > 0 || m.Header["tracestate"] != nil || m.Header["baggage"][0] != "tenant=a") {
			t.Errorf("%s: half of the other context is left: %v", tt.name, m.Header)
		}
		if tt.lower == "" && m.Header["Traceparent"][0] != old {
			t.Errorf("%s: the caller's header was changed: %v", tt.name, m.Header)
		}
		if m.Header.Get("Colour") != "red" {
			t.Errorf("%s: %v", tt.name, m.Header)
		}
	}
}
