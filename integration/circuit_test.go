package integration

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
)

// watchCircuit returns a function that waits until the bridge has said that its
// circuit is in a state, from now on.
func (s *stand) watchCircuit(want string) (await func()) {
	s.t.Helper()
	nc := s.client()
	states := make(chan string, 1000)
	_, err := nc.Subscribe("delay.sys.state", func(m *nats.Msg) {
		var at struct {
			State string `json:"circuit_state"`
		}
		if json.Unmarshal(m.Data, &at) == nil {
			select {
			case states <- at.State:
			default:
			}
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.t.Helper()
		defer nc.Close()
		for end := time.After(patient); ; {
			select {
			case got := <-states:
				if got == want {
					return
				}
			case <-end:
				s.t.Fatalf("no circuit_state %s within %v", want, patient)
			}
		}
	}
}
