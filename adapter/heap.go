package adapter

// dueHeap is a binary min-heap of deliveries by the time their attempt is
// due, ties by incarnation: the order in which they were taken in.
type dueHeap []*flight

func (h dueHeap) less(i, j int) bool {
	if h[i].Next != h[j].Next {
		return h[i].Next < h[j].Next
	}
	return h[i].Incarnation < h[j].Incarnation
}

func (h dueHeap) top() *flight {
	if len(h) == 0 {
		return nil
	}
	return h[0]
}

func (h *dueHeap) push(f *flight) {
	*h = append(*h, f)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s.less(i, parent) {
			break
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

func (h *dueHeap) pop() *flight {
	s := *h
	f := s[0]
	n := len(s) - 1
	s[0], s[n] = s[n], nil
	*h = s[:n]
	h.down(0)
	return f
}

func (h dueHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
