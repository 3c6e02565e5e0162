package main

import (
	"fmt"
	"strings"

	"github.com/delaybridge/delaybridge/adapter"
)

// securityKeys bound what others can make a bridge do that they may not do
// themselves.
var securityKeys = []*key{
	{name: "replies.allow", unit: "subject patterns", list: true, defHelp: "all subjects",
		help: "patterns, one of which a reply subject or Delay-Reply-To must match, unless it is an inbox; set it where producers do not trust each other, see security.md",
		set:  func(c *config, v []string) error { c.bridge.AllowReplies = v; return nil }},
	{name: "workers.allow", unit: "worker=pattern", list: true, defHelp: "what workers say",
		help: "which targets workers that own their jobs may take, e.g. orders-*=orders.>; set it where workers do not trust each other",
		set:  workerRules},
}

func workerRules(c *config, v []string) error {
	c.bridge.AllowWorkers = nil
	for _, s := range v {
		name, pattern, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q is not worker=pattern", s)
		}
		c.bridge.AllowWorkers = append(c.bridge.AllowWorkers, adapter.WorkerRule{Name: name, Pattern: pattern})
	}
	return nil
}
