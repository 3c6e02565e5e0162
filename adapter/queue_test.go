package adapter

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

// TestDueQueueOrder pushes and pops at random, mostly in order as claims come,
// and compares with a sorted list; of one instant the first pushed comes first.
func TestDueQueueOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var q dueQueue
	var want []*flight
	for i := range 20_000 {
		if rnd.IntN(5) < 3 {
			f := &flight{}
			f.Next = job.Time(i / 10)
			if rnd.IntN(20) == 0 {
				f.Next -= job.Time(rnd.IntN(50))
			}
			q.push(f)
			at, _ := slices.BinarySearchFunc(want, f.Next+1, func(f *flight, t job.Time) int { return int(f.Next - t) })
			want = slices.Insert(want, at, f)
		} else if len(want) > 0 {
			if got := q.pop(); got.Next != want[0].Next {
				t.Fatalf("step %d: popped %d, want %d", i, got.Next, want[0].Next)
			} else {
				want = slices.DeleteFunc(want, func(f *flight) bool { return f == got })
			}
		}
		if q.len() != len(want) || (q.top() == nil) != (len(want) == 0) {
			t.Fatalf("step %d: length %d, top %v, want length %d", i, q.len(), q.top(), len(want))
		}
	}
	n := 0
	for range q.all() {
		n++
	}
	if n != len(want) {
		t.Errorf("all returned %d, want %d", n, len(want))
	}
}

func TestDueQueueKeepsTheOrderOfOneInstant(t *testing.T) {
	var q dueQueue
	fs := make([]flight, 1000)
	for i := range fs {
		q.push(&fs[i])
	}
	for i := range fs {
		if q.pop() != &fs[i] {
			t.Fatalf("pop %d is another one", i)
		}
	}
}
