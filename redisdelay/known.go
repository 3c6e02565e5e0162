package redisdelay

import "encoding/json"

// known is what outlives a process, as JSON.
type known struct {
	Bridge  string             `json:"bridge"`
	Epochs  []string           `json:"epochs"`  // per shard
	Numbers map[string][]int64 `json:"numbers"` // of the last confirmed call, per kind and shard
}

// Known returns what Redis has confirmed up to now, for Options.Known of the next
// process. A loss that it hides was reported before.
func (s *Store) Known() []byte {
	k := known{Bridge: s.opts.BridgeID, Numbers: make(map[string][]int64, len(s.kinds))}
	for i := range s.kinds {
		numbers := make([]int64, len(s.keys))
		for shard := range numbers {
			numbers[shard] = s.confirmed[i][shard].Load()
		}
		k.Numbers[s.kinds[i].script.name] = numbers
	}
	s.mu.Lock()
	k.Epochs = append(k.Epochs, s.epochs...)
	s.mu.Unlock()
	b, _ := json.Marshal(k) // strings and numbers: never fails
	return b
}

// unknownEpoch is no shard's epoch.
const unknownEpoch = "not known"

// recall takes over what an earlier process knew.
func (s *Store) recall(data []byte) {
	if data == nil {
		return
	}
	var k known
	if err := json.Unmarshal(data, &k); err != nil || len(k.Epochs) != len(s.keys) {
		for i := range s.epochs {
			s.epochs[i] = unknownEpoch
		}
		return
	}
	copy(s.epochs, k.Epochs)
	if k.Bridge != s.opts.BridgeID {
		return // the numbers are another one's
	}
	for i := range s.kinds {
		if numbers := k.Numbers[s.kinds[i].script.name]; len(numbers) == len(s.keys) {
			for shard, n := range numbers {
				s.confirmed[i][shard].Store(n)
			}
		}
	}
}
