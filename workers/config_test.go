package workers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/delaybridge/delaybridge/workers"
)

func TestConfig(t *testing.T) {
	nc := connect(t, testnats.Start(t))
	for _, tt := range []struct {
		why    string // "": it is right
		change func(*workers.Config)
	}{
		{"", func(*workers.Config) {}},
		{"", func(c *workers.Config) { *c = workers.Config{Subjects: []string{"t.x", "t.*.y"}} }},
		{"", func(c *workers.Config) { c.Concurrency = 4096 }},
		{"", func(c *workers.Config) { c.Name = "w-1_A" }},
		{"", func(c *workers.Config) { c.Prefix = "a.b" }},
		{"no Subjects", func(c *workers.Config) { c.Subjects = nil }},
		{"pattern", func(c *workers.Config) { c.Subjects = []string{"t.x", "t..x"} }},
		{"", func(c *workers.Config) { c.Subjects = []string{">"} }},
		{"covers no job", func(c *workers.Config) { c.Subjects = []string{"t.x", "delay.>"} }},
		{"covers no job", func(c *workers.Config) { c.Prefix, c.Subjects = "a.b", []string{"a.b.*"} }},
		{"covers no job", func(c *workers.Config) { c.Subjects = []string{"$JS.>"} }},
		{"worker id", func(c *workers.Config) { c.Name = "a.b" }},
		{"worker id", func(c *workers.Config) { c.Name = strings.Repeat("a", 65) }},
		{"prefix", func(c *workers.Config) { c.Prefix = "a b" }},
		{"queue", func(c *workers.Config) { c.Queue = "a b" }},
		{"concurrency", func(c *workers.Config) { c.Concurrency = 4097 }},
		{"concurrency", func(c *workers.Config) { c.Concurrency = -1 }},
		{"heartbeat", func(c *workers.Config) { c.Heartbeat = time.Millisecond }},
		{"timeout", func(c *workers.Config) { c.Timeout = -1 }},
	} {
		cfg := config()
		tt.change(&cfg)
		w, err := workers.New(nc, cfg, done)
		if tt.why == "" {
			if err != nil || subjects.CheckWorkerID(w.Name()) != nil {
				t.Errorf("%+v: error %v", cfg, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%+v: error %v, want one about %s", cfg, err, tt.why)
		}
	}
	if _, err := workers.New(nil, config(), done); err == nil {
		t.Error("no connection is not refused")
	}
	if _, err := workers.New(nc, config(), nil); err == nil {
		t.Error("no handler is not refused")
	}
}
