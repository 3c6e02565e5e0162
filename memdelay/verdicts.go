package memdelay

import (
	"cmp"
	"container/list"
	"iter"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// verdictBytes is about what a verdict takes in memory beside its strings.
const verdictBytes = 200

// verdict is how a job ended that another store may hold.
type verdict struct {
	id string
	note
	age *list.Element
}

func (v *verdict) size() int { return len(v.id) + len(v.target) + verdictBytes }

// verdicts are those that are owed. Each incarnation of an id has its own: the
// other store may hold the first one when the second has ended here.
type verdicts struct {
	byID  map[string][]*verdict // the earliest incarnation first
	byAge list.List             // of *verdict, in the order that they came in
	bytes int64
}

func newVerdicts() verdicts { return verdicts{byID: map[string][]*verdict{}} }

func (v *verdicts) len() int { return v.byAge.Len() }

// find returns where that incarnation is, or belongs, among those of id.
func (v *verdicts) find(id string, incarnation uint64) (int, bool) {
	return slices.BinarySearchFunc(v.byID[id], incarnation, func(x *verdict, incarnation uint64) int {
		return cmp.Compare(x.incarnation, incarnation)
	})
}

// get returns the verdict on that incarnation, or nil.
func (v *verdicts) get(id string, incarnation uint64) *verdict {
	if at, ok := v.find(id, incarnation); ok {
		return v.byID[id][at]
	}
	return nil
}

// latest returns the verdict on the latest incarnation, or nil.
func (v *verdicts) latest(id string) *verdict {
	if list := v.byID[id]; len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

// oldest returns the verdict that came in first, or nil.
func (v *verdicts) oldest() *verdict {
	if first := v.byAge.Front(); first != nil {
		return first.Value.(*verdict)
	}
	return nil
}

// add adds a verdict, in place of the former one on that incarnation.
func (v *verdicts) add(id string, n note) {
	v.remove(id, n.incarnation)
	x := &verdict{id: id, note: n}
	x.age = v.byAge.PushBack(x)
	at, _ := v.find(id, n.incarnation)
	v.byID[id] = slices.Insert(v.byID[id], at, x)
	v.bytes += int64(x.size())
}

// remove forgets the verdict on that incarnation and reports whether there was
// one.
func (v *verdicts) remove(id string, incarnation uint64) bool {
	at, ok := v.find(id, incarnation)
	if !ok {
		return false
	}
	list := v.byID[id]
	v.byAge.Remove(list[at].age)
	v.bytes -= int64(list[at].size())
	if list = slices.Delete(list, at, at+1); len(list) == 0 {
		delete(v.byID, id)
	} else {
		v.byID[id] = list
	}
	return true
}

// inOrder yields the verdicts in the order that they came in.
func (v *verdicts) inOrder() iter.Seq[*verdict] {
	return func(yield func(*verdict) bool) {
		for e := v.byAge.Front(); e != nil; e = e.Next() {
			if !yield(e.Value.(*verdict)) {
				return
			}
		}
	}
}

// all yields the verdicts by id, those on one id by incarnation. What is added
// and removed meanwhile may or may not be among them, nothing else is left out.
func (v *verdicts) all() iter.Seq2[string, note] {
	return func(yield func(string, note) bool) {
		for id, list := range v.byID {
			for _, x := range slices.Clone(list) {
				if !yield(id, x.note) {
					return
				}
			}
		}
	}
}

// order makes the order that verdicts came in that of their times, once they
// were restored.
func (v *verdicts) order() {
	sorted := slices.SortedFunc(v.inOrder(), func(a, b *verdict) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.incarnation, b.incarnation))
	})
	for _, x := range sorted {
		v.byAge.MoveToBack(x.age)
	}
}

// dropVerdict forgets the verdict on that incarnation of id, if there is one: it
// is not owed any more.
func (s *Store) dropVerdict(id string, incarnation uint64) {
	if s.verdicts.remove(id, incarnation) {
		s.logSettled(id, incarnation)
	}
}

// PruneVerdicts forgets the verdicts on jobs that ended before the time given,
// up to the first that came in later, and returns how many. It lets others in
// now and then, and does not wait until that is durable.
func (s *Store) PruneVerdicts(before job.Time) (pruned int) {
	for {
		n := s.pruneSlice(before)
		if pruned += n; n < sliceLen {
			return pruned
		}
	}
}

func (s *Store) pruneSlice(before job.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0
	}
	for ; n < sliceLen; n++ {
		v := s.verdicts.oldest()
		if v == nil || v.at >= before {
			break
		}
		s.dropVerdict(v.id, v.incarnation)
	}
	s.append()
	return n
}
