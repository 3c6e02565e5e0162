package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/adapter"
)

func TestSecurityKeys(t *testing.T) {
	c, err := loadConfig(nil, []string{"DELAYBRIDGE_WORKERS_ALLOW=w1=orders.>,b-*=billing.>", "DELAYBRIDGE_REPLIES_ALLOW=results.>"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []adapter.WorkerRule{{Name: "w1", Pattern: "orders.>"}, {Name: "b-*", Pattern: "billing.>"}}; !reflect.DeepEqual(c.bridge.AllowWorkers, want) {
		t.Errorf("workers.allow: %v, want %v", c.bridge.AllowWorkers, want)
	}
	if want := []string{"results.>"}; !reflect.DeepEqual(c.bridge.AllowReplies, want) {
		t.Errorf("replies.allow: %v, want %v", c.bridge.AllowReplies, want)
	}
	for _, bad := range []string{"WORKERS_ALLOW=w1", "WORKERS_ALLOW=a*b=x", "WORKERS_ALLOW=w1=x..y", "REPLIES_ALLOW=x..y"} {
		_, err := loadConfig(nil, []string{"DELAYBRIDGE_" + bad})
		if key := strings.ToLower(strings.Replace(bad[:strings.IndexByte(bad, '=')], "_", ".", 1)); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, want an error that names %s", bad, err, key)
		}
	}
}
