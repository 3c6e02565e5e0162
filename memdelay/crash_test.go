package memdelay

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// A walk is a random series of calls of a durable store whose machine goes down
// again and again. After each crash the store must be what a store in memory is
// after the same calls: all those that were confirmed, the one that was under way
// or not, and of those that do not wait a prefix.
type walk struct {
	t    *testing.T
	seed uint64
	rnd  *rand.Rand
	fs   *crashfs.FS
	s    *Store
	// The calls so far, and how many of them must have survived.
	calls   []call
	durable int
	model   *Store // after all calls

	clock job.Time
	mints uint64
}

// call does the same to every store; it reports whether it waits until that is
// durable.
type call struct {
	name string
	do   func(s *Store) (waits bool, err error)
}

func crashOptions(fs *crashfs.FS) Options {
	return Options{
		DedupWindow: 24 * time.Hour, Verdicts: true, FS: fs, SnapshotBytes: 1 << 40, SegmentBytes: 4 << 10,
		Nonce: func(incarnation uint64, attempt uint32, owner string) uint64 {
			return incarnation<<16 + uint64(attempt)
		},
	}
}

// TestCrash crashes at an operation of the file system that the seed chooses,
// thrice per walk. DELAYBRIDGE_SOAK makes it longer, DELAYBRIDGE_SEED replays
// one walk.
func TestCrash(t *testing.T) {
	first, walks := uint64(1), uint64(400)
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		walks = 40_000
	}
	if text := os.Getenv("DELAYBRIDGE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, walks = seed, 1
	}
	for seed := first; seed < first+walks && !t.Failed(); seed++ {
		w := &walk{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), fs: crashfs.New(seed), clock: 1e15, mints: 1e6}
		w.model = New(crashOptions(nil))
		w.open()
		for range 3 {
			w.fs.CrashAt(w.fs.Ops() + 1 + w.rnd.IntN(250))
			for n := w.rnd.IntN(120); n > 0 && w.step(); n-- {
			}
			w.crash()
		}
		w.s.Close() // fails where the crash is yet to come
	}
}

func (w *walk) open() {
	for try := 0; ; try++ {
		s, err := Open("/store", crashOptions(w.fs))
		if err == nil {
			w.s = s
			return
		}
		if !w.fs.Crashed() || try > 9 {
			w.t.Fatalf("seed %d: Open: %v", w.seed, err)
		}
		w.fs = w.fs.Restart()
	}
}

// step makes a random call of the store and of the model; it reports whether
// the machine is still up.
func (w *walk) step() bool {
	if w.rnd.IntN(12) == 0 {
		if err := w.s.compact(); err != nil && !w.fs.Crashed() {
			w.t.Fatalf("seed %d: snapshot: %v", w.seed, err)
		}
		return !w.fs.Crashed()
	}
	c := w.next()
	w.calls = append(w.calls, c)
	if _, err := c.do(w.model); err != nil {
		w.t.Fatalf("seed %d: %s of the model: %v", w.seed, c.name, err)
	}
	waits, err := c.do(w.s)
	if err != nil {
		if !w.fs.Crashed() {
			w.t.Fatalf("seed %d: %s: %v", w.seed, c.name, err)
		}
		return false
	}
	if waits {
		w.durable = len(w.calls)
	}
	return true
}

// crash takes the power away, opens the store again and looks for the calls
// after which the model is the same.
func (w *walk) crash() {
	w.fs.Crash()
	w.s.Close() // fails: nothing can be written any more
	w.fs = w.fs.Restart()
	if w.rnd.IntN(4) == 0 {
		w.fs.CrashAt(1 + w.rnd.IntN(20)) // while it opens
	}
	w.open()
	got := dump(w.s)
	var want []string
	w.model = New(crashOptions(nil))
	for n := 0; ; n++ {
		if n >= w.durable {
			if want = append(want, dump(w.model)); want[len(want)-1] == got {
				w.calls, w.durable = w.calls[:n], n
				return
			}
		}
		if n == len(w.calls) {
			break
		}
		w.calls[n].do(w.model)
	}
	w.t.Errorf("seed %d: %d of %d calls must be there, the last one was %s; got\n%s\nwant one of\n%s",
		w.seed, w.durable, len(w.calls), w.calls[len(w.calls)-1].name, got, strings.Join(want, "\nor\n"))
}

// tick returns a time that no other call gets.
func (w *walk) tick() job.Time {
	w.clock += 1000
	return w.clock
}

func (w *walk) id() string { return fmt.Sprint("job", w.rnd.IntN(12)) }

func (w *walk) ids() []string {
	list := make([]string, 1+w.rnd.IntN(3))
	for i := range list {
		list[i] = w.id()
	}
	return list
}

func (w *walk) job() job.Job {
	w.mints++
	j := job.Job{
		ID: w.id(), Generated: w.rnd.IntN(2) == 0, Incarnation: w.mints, Target: "t", Due: w.tick(), AckWait: time.Millisecond,
		Replace: w.rnd.IntN(3) == 0, Payload: make([]byte, w.rnd.IntN(300)),
	}
	j.Expires = j.Due + 5
	return j
}

// some returns a random job that the model holds.
func (w *walk) some() (job.Info, bool) {
	infos, err := w.model.Get(context.Background(), []string{w.id()})
	if err != nil {
		w.t.Fatal(err)
	}
	return infos[0], slices.Contains([]job.State{job.Pending, job.Running, job.Dead}, infos[0].State)
}

func (w *walk) next() call {
	ctx := context.Background()
	switch w.rnd.IntN(14) {
	case 0, 1, 2:
		jobs := make([]job.Job, 1+w.rnd.IntN(4))
		for i := range jobs {
			jobs[i] = w.job()
		}
		suspect := w.rnd.IntN(3) == 0
		return call{"put", func(s *Store) (bool, error) {
			if suspect {
				_, err := s.PutSuspect(ctx, slices.Clone(jobs))
				return true, err
			}
			_, err := s.Put(ctx, slices.Clone(jobs))
			return true, err
		}}
	case 3, 4:
		r := job.ClaimRequest{Now: w.tick(), Until: w.clock, Max: 1 + w.rnd.IntN(5), Owner: "o"}
		switch w.rnd.IntN(4) {
		case 0:
			r.Target = "t"
			if w.rnd.IntN(2) == 0 {
				r.Slots = []job.Slot{{Owner: "o/w1", Free: w.rnd.IntN(3)}, {Owner: "o/w2", Free: w.rnd.IntN(3)}}
			}
		case 1:
			r.Blocked = []string{"t"}
		}
		return call{"claim", func(s *Store) (bool, error) {
			c, err := s.Claim(ctx, r)
			return len(c.Deliveries) > 0, err
		}}
	case 5, 6, 7:
		return w.settlement()
	case 8:
		now, ids := w.tick(), w.ids()
		return call{"cancel", func(s *Store) (bool, error) { _, err := s.Cancel(ctx, now, job.ByIDs(ids...)); return true, err }}
	case 9:
		list := []job.Reschedule{{ID: w.id(), Due: w.tick(), Requeue: w.rnd.IntN(2) == 0}, {ID: w.id(), Due: w.tick()}}
		return call{"reschedule", func(s *Store) (bool, error) { _, err := s.Reschedule(ctx, list); return true, err }}
	case 10:
		return w.adoption()
	case 11:
		list := w.model.Export(1+w.rnd.IntN(4), w.rnd.IntN(2) == 0, nil)
		if w.rnd.IntN(2) == 0 {
			return call{"owe", func(s *Store) (bool, error) { _, err := s.Owe(ctx, list); return true, err }}
		}
		return call{"forget", func(s *Store) (bool, error) { _, err := s.Forget(ctx, list); return true, err }}
	case 12:
		ids := w.ids()
		return call{"take", func(s *Store) (bool, error) { s.Take(ids); return false, nil }}
	default:
		return w.removal()
	}
}

func (w *walk) settlement() call {
	now := w.tick()
	t := job.Settlement{Outcome: job.Outcome(w.rnd.IntN(7)), At: w.tick(), Target: "t", Spare: w.rnd.IntN(2) == 0, Reason: "why"}
	t.Owner = []string{"o/w1", "o/w2", "p/w1"}[w.rnd.IntN(3)]
	if i, ok := w.some(); ok {
		t.Ref = i.Ref()
	}
	return call{fmt.Sprint("settle ", t.Outcome), func(s *Store) (bool, error) {
		_, err := s.Settle(context.Background(), now, []job.Settlement{t})
		return true, err
	}}
}

func (w *walk) adoption() call {
	j := w.job()
	j.Replace = false
	i := job.Info{Job: j, Attempt: uint32(w.rnd.IntN(3)), Next: w.tick()}
	if held, _ := w.some(); held.State != "" && w.rnd.IntN(2) == 0 {
		i = held
		i.Next, i.Attempt = w.tick(), i.Attempt+1
	}
	i.State = []job.State{job.Pending, job.Running, job.Dead, job.Done, job.Cancelled}[w.rnd.IntN(5)]
	i.Owner, i.Nonce, i.Reason = "", 0, ""
	switch i.State {
	case job.Running:
		i.Owner, i.Nonce = []string{"o", "o/w1"}[w.rnd.IntN(2)], 5
	case job.Dead:
		i.Reason = "why"
	}
	return call{"adopt " + string(i.State), func(s *Store) (bool, error) {
		return true, s.Adopt(context.Background(), []job.Info{i})
	}}
}

func (w *walk) removal() call {
	at, id := w.tick(), w.id()
	switch w.rnd.IntN(3) {
	case 0:
		return call{"prune", func(s *Store) (bool, error) { _, err := s.Prune(context.Background(), at, 1); return true, err }}
	case 1:
		return call{"prune verdicts", func(s *Store) (bool, error) { s.PruneVerdicts(at - 20_000); return false, nil }}
	}
	return call{"discard", func(s *Store) (bool, error) {
		return true, s.Discard(context.Background(), []job.Ref{{ID: id}})
	}}
}

// dump writes down all that a store knows, and checks that it is in order.
func dump(s *Store) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	var own, all int64
	adopted, urgent := 0, 0
	for slot := range uint32(s.entries.slots()) {
		e := s.entries.at(slot)
		if e.place == free {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %d %+v", e.id(), len(e.blob), e.image()))
		if s.ids.find(e.id()) != slot || s.queue(e).slots[e.pos] != slot {
			lines = append(lines, e.id()+" is not where it should be")
		}
		if all += int64(len(e.blob)); e.adopted() {
			adopted++
		} else {
			own += int64(len(e.blob))
		}
		if _, first := s.urgent[slot]; first != e.urgent() {
			lines = append(lines, fmt.Sprintf("%s is urgent: %v", e.id(), first))
		} else if first {
			urgent++
		}
	}
	if own != s.ownBytes || all != s.allBytes || adopted != s.adoptions || urgent != len(s.urgent) {
		lines = append(lines, fmt.Sprintf("counts are wrong: %d %d %d %d", s.ownBytes, s.allBytes, s.adoptions, len(s.urgent)))
	}
	lines = append(lines, dumpVerdicts(&s.verdicts)...)
	for in := range noteMaps {
		for id, n := range *s.noteMap(in) {
			lines = append(lines, fmt.Sprintf("note %d %s %+v", in, id, n))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// dumpVerdicts writes down verdicts, and checks that they are in order.
func dumpVerdicts(v *verdicts) (lines []string) {
	var bytes int64
	for x := range v.inOrder() {
		lines = append(lines, fmt.Sprintf("verdict %s %+v", x.id, x.note))
		if bytes += int64(x.size()); v.get(x.id, x.incarnation) != x {
			lines = append(lines, fmt.Sprintf("the verdict on %s %d is not found", x.id, x.incarnation))
		}
	}
	listed := 0
	for id, list := range v.byID {
		listed += len(list)
		if v.latest(id) == nil || !slices.IsSortedFunc(list, func(a, b *verdict) int { return cmp.Compare(a.incarnation, b.incarnation) }) {
			lines = append(lines, "the verdicts on "+id+" are not in order")
		}
	}
	if bytes != v.bytes || listed != v.len() {
		lines = append(lines, fmt.Sprintf("counts of verdicts are wrong: %d %d %d", v.bytes, v.len(), listed))
	}
	return lines
}
