package memdelay

import (
	"iter"

	"github.com/delaybridge/delaybridge/job"
)

// heap is a min-heap of slots by the next time of their entries, which know
// their positions in it.
type heap struct {
	entries *slab
	slots   []uint32
}

func (h *heap) len() int { return len(h.slots) }

// next returns the earliest time, zero when the heap is empty.
func (h *heap) next() job.Time {
	if h.len() == 0 {
		return 0
	}
	return h.entries.at(h.slots[0]).next
}

// due returns the earliest slot if its time is at or before until.
func (h *heap) due(until job.Time) (uint32, bool) {
	if h.len() == 0 || h.next() > until {
		return 0, false
	}
	return h.slots[0], true
}

func (h *heap) push(slot uint32) {
	h.slots = append(h.slots, slot)
	h.up(slot, uint32(h.len()-1))
}

// remove takes out the slot at pos.
func (h *heap) remove(pos uint32) {
	last := uint32(h.len() - 1)
	slot := h.slots[last]
	h.slots = h.slots[:last]
	if pos == last {
		return
	}
	// The one that fills the gap comes from another branch: it may belong
	// above the gap as well as below.
	h.up(slot, pos)
	h.down(slot, h.entries.at(slot).pos)
}

// up places slot at pos or above.
func (h *heap) up(slot, pos uint32) {
	at := h.entries.at(slot).next
	for pos > 0 {
		parent := (pos - 1) / 2
		other := h.slots[parent]
		if h.entries.at(other).next <= at {
			break
		}
		h.set(pos, other)
		pos = parent
	}
	h.set(pos, slot)
}

// down places slot at pos or below.
func (h *heap) down(slot, pos uint32) {
	at := h.entries.at(slot).next
	for {
		child, childAt, ok := h.lesserChild(pos)
		if !ok || at <= childAt {
			break
		}
		h.set(pos, h.slots[child])
		pos = child
	}
	h.set(pos, slot)
}

func (h *heap) lesserChild(pos uint32) (child uint32, at job.Time, ok bool) {
	n := uint32(h.len())
	child = 2*pos + 1
	if child >= n {
		return 0, 0, false
	}
	at = h.entries.at(h.slots[child]).next
	if right := child + 1; right < n {
		if r := h.entries.at(h.slots[right]).next; r < at {
			return right, r, true
		}
	}
	return child, at, true
}

func (h *heap) set(pos, slot uint32) {
	h.slots[pos] = slot
	h.entries.at(slot).pos = pos
}

// order makes a heap of slots that are in any order.
func (h *heap) order() {
	for pos, slot := range h.slots {
		h.entries.at(slot).pos = uint32(pos)
	}
	for pos := h.len()/2 - 1; pos >= 0; pos-- {
		h.down(h.slots[pos], uint32(pos))
	}
}

// first yields the slots of heaps in the order of their times, up to until. The
// heaps, which must not change meanwhile, stay as they are: after the top of
// each, what lies below a slot comes into question once that slot has come up.
func (s *Store) first(until job.Time, heaps ...*heap) iter.Seq[uint32] {
	return func(yield func(slot uint32) bool) {
		var open frontier
		for _, h := range heaps {
			open.add(h, 0, until)
		}
		for len(open) > 0 {
			p := open.pop()
			if !yield(p.heap.slots[p.pos]) {
				return
			}
			open.add(p.heap, 2*p.pos+1, until)
			open.add(p.heap, 2*p.pos+2, until)
		}
	}
}

// position is a place in a heap, and the time of the entry there.
type position struct {
	next job.Time
	heap *heap
	pos  int
}

// frontier is a min-heap of positions by time.
type frontier []position

// add adds that place in h, if there is one and its time is not after until.
func (f *frontier) add(h *heap, pos int, until job.Time) {
	if pos >= h.len() {
		return
	}
	next := h.entries.at(h.slots[pos]).next
	if next > until {
		return
	}
	*f = append(*f, position{next, h, pos})
	for i := len(*f) - 1; i > 0 && (*f)[i].next < (*f)[(i-1)/2].next; i = (i - 1) / 2 {
		(*f)[i], (*f)[(i-1)/2] = (*f)[(i-1)/2], (*f)[i]
	}
}

// pop takes out the first position.
func (f *frontier) pop() position {
	s := *f
	top, last := s[0], len(s)-1
	s[0], s[last] = s[last], position{}
	s = s[:last]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(s) && s[child].next < s[least].next {
				least = child
			}
		}
		if least == i {
			break
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
	*f = s
	return top
}
