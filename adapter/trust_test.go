package adapter

import (
	"errors"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		outer, pattern string
		want           bool
	}{
		{"orders.>", "orders.x", true}, {"orders.>", "orders.x.y", true}, {"orders.>", "orders.*", true}, {"orders.>", "orders.>", true},
		{"orders.>", "orders", false}, {"orders.>", "billing.x", false}, {"orders.>", ">", false}, {"orders.>", "*.x", false},
		{"orders.*", "orders.x", true}, {"orders.*", "orders.*", true}, {"orders.*", "orders.>", false}, {"orders.*", "orders.x.y", false},
		{"orders.x", "orders.x", true}, {"orders.x", "orders.*", false}, {"orders.x", "orders", false}, {"orders", "orders.x", false},
		{">", "orders.x", true}, {">", ">", true}, {"*.x", "orders.x", true}, {"*.x", ">", false},
	} {
		if got := covers(c.outer, c.pattern); got != c.want {
			t.Errorf("%s covers %s: %v", c.outer, c.pattern, got)
		}
	}
}

func TestWorkerRules(t *testing.T) {
	trust, err := newTrust(Config{AllowWorkers: []WorkerRule{{"w1", "orders.>"}, {"billing-*", "billing.>"}, {"billing-*", "audit"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		patterns []string
		allowed  bool
	}{
		{"w1", []string{"orders.x"}, true}, {"w1", nil, true}, {"w1", []string{"orders.x", "billing.x"}, false}, {"w12", []string{"orders.x"}, false},
		{"billing-7", []string{"billing.>", "audit"}, true}, {"billing-", []string{"audit"}, true}, {"billing", []string{"audit"}, false},
	} {
		err := trust.worker(c.name, c.patterns)
		if (err == nil) != c.allowed || err != nil && !errors.Is(err, job.ErrForbidden) {
			t.Errorf("worker %s of %q: %v", c.name, c.patterns, err)
		}
	}
	for _, bad := range []WorkerRule{{"", "x"}, {"a b", "x"}, {"a*b", "x"}, {"**", "x"}, {"a", "x..y"}, {"a", ""}} {
		if _, err := newTrust(Config{AllowWorkers: []WorkerRule{bad}}); err == nil {
			t.Errorf("%+v is no rule", bad)
		}
	}
	if _, err := newTrust(Config{AllowWorkers: []WorkerRule{{"*", ">"}}}); err != nil {
		t.Errorf("a rule for all: %v", err)
	}
}

func TestReplyRules(t *testing.T) {
	open, err := newTrust(Config{})
	if err != nil || !open.reply("anything.at.all") {
		t.Errorf("without a rule: %v", err)
	}
	trust, err := newTrust(Config{AllowReplies: []string{"results.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[string]bool{
		"results.x": true, "_INBOX.a.b": true, "_R_.x": true,
		"billing.x": false, "results": false, "_INBOXES.x": false, "_INBOX": false,
	} {
		if trust.reply(subject) != want {
			t.Errorf("%s: %v, want %v", subject, !want, want)
		}
	}
	if _, err := newTrust(Config{AllowReplies: []string{"a..b"}}); err == nil {
		t.Error("a..b is no pattern")
	}
}
