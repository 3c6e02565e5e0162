package adapter

import "iter"

// dueQueue orders deliveries by the time their attempt is due, those of one
// instant as they came. Claims return jobs in order, so nearly all are appended
// to a list and taken from its front; only what comes out of order is in a heap.
type dueQueue struct {
	list []*flight // from head on; in order
	head int
	late dueHeap
}

func (q *dueQueue) len() int { return len(q.list) - q.head + len(q.late) }

// top returns the first delivery, nil when there is none.
func (q *dueQueue) top() *flight {
	if q.head == len(q.list) {
		return q.late.top()
	}
	first := q.list[q.head]
	if late := q.late.top(); late != nil && late.Next < first.Next {
		return late
	}
	return first
}

func (q *dueQueue) push(f *flight) {
	switch n := len(q.list); {
	case n == q.head:
		q.list, q.head = q.list[:0], 0
	case f.Next < q.list[n-1].Next:
		q.late.push(f)
		return
	case q.head >= 256 && 2*q.head >= n:
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		clear(q.list[len(q.list):n])
		q.head = 0
	}
	q.list = append(q.list, f)
}

// pop takes the first delivery; there must be one.
func (q *dueQueue) pop() *flight {
	f := q.top()
	if q.late.top() == f {
		return q.late.pop()
	}
	q.list[q.head] = nil
	q.head++
	return f
}

// all returns every delivery, in no particular order.
func (q *dueQueue) all() iter.Seq[*flight] {
	return func(yield func(*flight) bool) {
		for _, part := range [][]*flight{q.list[q.head:], q.late} {
			for _, f := range part {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// dueHeap is a binary min-heap of deliveries by the time their attempt is due.
type dueHeap []*flight

func (h dueHeap) less(i, j int) bool { return h[i].Next < h[j].Next }

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
