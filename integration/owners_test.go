package integration

import (
	"encoding/json"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// ledger is what bridges tell of owners: how many jobs each worker owns, and how
// many it owned at most.
type ledger struct {
	mu        sync.Mutex
	now, most map[string]int
	told      int
}

// watchOwners listens to owner messages from now on.
func (w *works) watchOwners() *ledger {
	w.t.Helper()
	l := &ledger{now: map[string]int{}, most: map[string]int{}}
	nc := w.client()
	_, err := nc.Subscribe("delay.owner.*", l.hear)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (l *ledger) hear(m *nats.Msg) {
	var body struct{ Event string }
	if json.Unmarshal(m.Data, &body) != nil {
		return // then the counts do not fit
	}
	worker := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told++
	switch body.Event {
	case "claimed":
		l.now[worker]++
		l.most[worker] = max(l.most[worker], l.now[worker])
	case "released":
		l.now[worker]--
	}
}

// owned is how many jobs the worker owned at most.
func (l *ledger) owned(worker string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most[worker]
}
