package memdelay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// addEntry makes an entry of id, due at next.
func addEntry(s *slab, id string, next job.Time) uint32 {
	slot := s.alloc()
	s.at(slot).blob = string(appendBlob(nil, &job.Job{ID: id, Target: "t"}))
	s.at(slot).next = next
	return slot
}

func TestHeapKeepsOrder(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		entries := &slab{}
		h := &heap{entries: entries}
		var want []job.Time
		for range 2000 {
			if rnd.IntN(3) > 0 || h.len() == 0 {
				at := job.Time(rnd.IntN(300) + 1)
				h.push(addEntry(entries, "x", at))
				want = append(want, at)
				continue
			}
			pos := uint32(rnd.IntN(h.len()))
			slot := h.slots[pos]
			at := entries.at(slot).next
			if entries.at(slot).pos != pos {
				t.Fatalf("seed %d: the entry at %d believes to be at %d", seed, pos, entries.at(slot).pos)
			}
			h.remove(pos)
			entries.free(slot)
			want = slices.Delete(want, slices.Index(want, at), slices.Index(want, at)+1)
		}
		slices.Sort(want)
		for _, at := range want {
			slot, ok := h.due(at)
			if !ok || h.next() != at || entries.at(slot).next != at {
				t.Fatalf("seed %d: next is %d, want %d", seed, h.next(), at)
			}
			h.remove(0)
		}
		if h.len() != 0 || h.next() != 0 {
			t.Fatalf("seed %d: %d left", seed, h.len())
		}
	}
}

// TestIndexWithCollisions lets most ids share their hash with others.
func TestIndexWithCollisions(t *testing.T) {
	entries := &slab{}
	ids := newIndex(entries)
	ids.hash = func(id string) uint32 { return uint32(id[len(id)-1]) % 4 }
	slots := map[string]uint32{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		id := fmt.Sprint("id", rnd.IntN(60))
		if got := ids.find(id); got != slots[id] {
			t.Fatalf("%q found in slot %d, want %d", id, got, slots[id])
		}
		if slot := slots[id]; slot != 0 {
			ids.remove(slot)
			entries.free(slot)
			delete(slots, id)
		} else {
			slots[id] = addEntry(entries, id, 0)
			ids.add(slots[id])
		}
	}
	for id, slot := range slots {
		ids.remove(slot)
		entries.free(slot)
		if got := ids.find(id); got != 0 {
			t.Errorf("%q found in slot %d after it was removed", id, got)
		}
	}
	if len(ids.first) != 0 || entries.count != 0 {
		t.Errorf("%d hashes and %d entries left of none", len(ids.first), entries.count)
	}
}

func TestSlabReusesSlots(t *testing.T) {
	s := &slab{}
	var slots []uint32
	for range 3 * chunkLen {
		slots = append(slots, s.alloc())
	}
	if slices.Contains(slots, 0) {
		t.Error("slot 0 was given out")
	}
	slices.Sort(slots)
	if len(slices.Compact(slots)) != 3*chunkLen {
		t.Error("a slot was given out twice")
	}
	had := s.slots()
	for _, slot := range slots {
		s.at(slot).place = dead
		s.free(slot)
	}
	for range 3 * chunkLen {
		if slot := s.alloc(); s.at(slot).place != free {
			t.Fatalf("slot %d was not cleared", slot)
		}
	}
	if s.slots() != had {
		t.Errorf("%d slots, want the %d from before", s.slots(), had)
	}
}

func TestEndedForgets(t *testing.T) {
	const window = time.Minute
	at := func(d time.Duration) job.Time { return job.Time(1e15).Add(d) }
	d := newEnded(window, 10)
	d.add(at(0), "a", note{at: at(0)})
	d.add(at(window-1000), "b", note{at: at(window - 1000)})
	d.add(at(window), "c", note{at: at(window)}) // a new generation
	for _, c := range []struct {
		id   string
		now  time.Duration
		want bool
	}{
		{"a", window - 1000, true}, {"a", window, false},
		{"b", 2*window - 2000, true}, {"b", 2*window - 1000, false}, {"c", window, true}, {"d", 0, false},
	} {
		if got := d.get(c.id, at(c.now)) != nil; got != c.want {
			t.Errorf("%q remembered at %v: %v, want %v", c.id, c.now, got, c.want)
		}
	}
	d.add(at(3*window), "d", note{at: at(3 * window)})
	if len(d.cur) != 1 || len(d.old) != 1 {
		t.Errorf("%d and %d notes kept, want 1 and 1", len(d.cur), len(d.old))
	}
}

func TestEndedIsCapped(t *testing.T) {
	const limit = 10
	d := newEnded(time.Minute, limit)
	for i := range 95 {
		d.add(1, fmt.Sprint(i), note{at: 1})
		if n := len(d.cur) + len(d.old); n > 2*limit {
			t.Fatalf("%d notes kept, want at most %d", n, 2*limit)
		}
	}
	for i := range limit {
		if id := fmt.Sprint(94 - i); d.get(id, 1) == nil {
			t.Errorf("%q, one of the last %d, is forgotten", id, limit)
		}
	}
}
