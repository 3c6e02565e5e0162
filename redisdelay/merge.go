package redisdelay

import (
	"context"
	"fmt"

	"github.com/delaybridge/delaybridge/job"
)

var _ job.Merger = (*Store)(nil)

// Merge implements [job.Merger]. What has ended is merged first, also by a Redis
// that is out of memory; then the others.
func (s *Store) Merge(ctx context.Context, now job.Time, items []job.MergeItem) ([]job.MergeResult, error) {
	var ended, living []int
	for i := range items {
		if err := checkItem(&items[i]); err != nil {
			return nil, err
		}
		if over(&items[i]) {
			ended = append(ended, i)
		} else {
			living = append(living, i)
		}
	}
	if err := s.lock(ctx, mergeKind); err != nil {
		return nil, err
	}
	defer s.unlock(mergeKind)
	s.seen(now)
	if err := s.loadTaken(ctx); err != nil {
		return nil, err
	}
	m := &merging{store: s, items: items, results: make([]job.MergeResult, len(items)), waits: map[int]string{}, began: map[int]bool{}}
	for _, todo := range [][]int{ended, living} {
		if err := m.run(ctx, todo); err != nil {
			s.reloadTaken()
			return nil, err
		}
	}
	return m.results, nil
}

func over(it *job.MergeItem) bool { return it.State == job.Done || it.State == job.Cancelled }

// mergeStates are the script's names of the states.
var mergeStates = map[job.State]byte{job.Pending: 'p', job.Running: 'r', job.Dead: 'x', job.Done: 'd', job.Cancelled: 'c'}

func checkItem(it *job.MergeItem) error {
	if err := it.Check(); err != nil {
		return fmt.Errorf("redisdelay: merge of job %q: %w", it.ID, err)
	}
	if mergeStates[it.State] == 0 {
		return fmt.Errorf("redisdelay: merge of job %q: state %q is not known", it.ID, it.State)
	}
	if it.State == job.Running && (it.Nonce == 0 || it.Attempt == 0) {
		return fmt.Errorf("redisdelay: merge of job %q: it is running without a nonce or attempt", it.ID)
	}
	return nil
}

// merging is one Merge under way.
type merging struct {
	store   *Store
	items   []job.MergeItem
	results []job.MergeResult
	waits   map[int]string // target that the job here may be set aside for
	began   map[int]bool   // shards whose list of what was taken has been begun
}

// mergeShard is what a round sends to one shard.
type mergeShard struct {
	shard int
	index []int
	ids   map[string]struct{}
	size  int
	full  bool
}

// run merges items in rounds of one call per shard.
func (m *merging) run(ctx context.Context, todo []int) error {
	for len(todo) > 0 {
		round, later := m.round(todo)
		calls := make([]*call, len(round))
		for i, sh := range round {
			calls[i] = m.newCall(sh)
		}
		err := m.store.runNumbered(ctx, calls)
		todo = later
		for i, sh := range round {
			m.lowerHead(sh)
			if err == nil {
				todo = append(m.absorb(calls[i], sh), todo...)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// round takes as much of todo as one call per shard may hold; an id that repeats
// must wait for the outcome of the first.
func (m *merging) round(todo []int) (round []*mergeShard, later []int) {
	shards := map[int]*mergeShard{}
	for _, i := range todo {
		n := shardOf(m.items[i].ID, m.store.opts.Shards)
		sh := shards[n]
		if sh == nil {
			sh = &mergeShard{shard: n, ids: make(map[string]struct{}, min(len(todo), maxBatch))}
			shards[n] = sh
			round = append(round, sh)
		}
		if !sh.add(i, &m.items[i]) {
			later = append(later, i)
		}
	}
	return round, later
}

func (sh *mergeShard) add(i int, it *job.MergeItem) bool {
	if _, repeats := sh.ids[it.ID]; sh.full || repeats {
		sh.full = true
		return false
	}
	sh.ids[it.ID] = struct{}{}
	sh.index = append(sh.index, i)
	sh.size += len(it.ID) + len(it.Payload)
	for _, f := range it.Header {
		sh.size += len(f.Name) + len(f.Value)
	}
	sh.full = len(sh.index) >= maxBatch || sh.size >= maxBytes
	return true
}

func (m *merging) newCall(sh *mergeShard) *call {
	s, n := m.store, len(sh.index)
	targets := map[string]bool{}
	var keys []string
	for _, i := range sh.index {
		if t, ok := m.waits[i]; ok && !targets[t] {
			targets[t] = true
			keys = append(keys, waitKey(s.opts.Prefix, sh.shard, t))
		}
	}
	c := s.newNumbered(mergeKind, sh.shard, 10+6*n, keys...)
	if over(&m.items[sh.index[0]]) {
		c.use(mergeEndedScript)
	}
	add := ""
	if m.began[sh.shard] {
		add = "a"
	}
	m.began[sh.shard] = true
	states, options := make([]byte, n), make([]byte, n)
	for k, i := range sh.index {
		states[k], options[k] = mergeStates[m.items[i].State], s.mergeOptions(&m.items[i])
	}
	c.add(s.opts.DoneCap, s.opts.DoneGeneratedCap*finEntry, s.takenField(), add, states, options, m.takenList(sh), s.takenSince(sh.shard))
	m.addItems(c, sh)
	return c
}

// addItems adds what the script needs of each item.
func (m *merging) addItems(c *call, sh *mergeShard) {
	var buf []byte
	take := func(b []byte) []byte {
		start := len(buf)
		buf = b
		return buf[start:len(buf):len(buf)]
	}
	for _, i := range sh.index {
		it := &m.items[i]
		if over(it) {
			c.add(it.ID, take(appendEndedItem(buf, it)))
		} else {
			c.add(it.ID, take(job.AppendRecord(buf, &it.Job)))
		}
	}
	for _, i := range sh.index {
		it := &m.items[i]
		if ref := it.Ref(); over(it) || it.State == job.Running {
			c.add(int64(it.Next), take(appendLease(buf, &ref)))
		} else {
			c.add(int64(it.Next), it.ID)
		}
	}
	for _, i := range sh.index {
		c.add(take(appendRunState(buf, &m.items[i])))
	}
	for _, i := range sh.index {
		owner := ""
		if it := &m.items[i]; it.State == job.Running {
			owner = cutOwner(it.Owner)
		}
		c.add(owner)
	}
}

// appendEndedItem appends what a done hash keeps of the item.
func appendEndedItem(dst []byte, it *job.MergeItem) []byte {
	start := len(dst)
	dst = appendEnded(dst, it.Next, &job.Settlement{Ref: it.Ref(), Target: it.Target, Due: it.Due})
	if it.State == job.Cancelled {
		dst[start] = 'c'
	}
	return dst
}

// appendRunState appends the run state that the item has here, if any.
func appendRunState(dst []byte, it *job.MergeItem) []byte {
	t := tries{attempts: it.Attempt, base: it.Base, at: it.Next}
	switch it.State {
	case job.Pending:
		if it.Attempt == 0 && it.Next == it.Due {
			return dst
		}
	case job.Running:
		t.attempts, t.at = it.Attempt-1, it.Due
		if t.attempts == 0 {
			return dst
		}
	case job.Dead:
		t.at, t.text = 0, it.Reason[:min(len(it.Reason), maxReasonLen)]
	default:
		return dst
	}
	return appendTries(dst, t)
}

// lowerHead tells Claim about the pending jobs; also after an error, because they
// may have been stored.
func (m *merging) lowerHead(sh *mergeShard) {
	first := never
	for _, i := range sh.index {
		if it := &m.items[i]; it.State == job.Pending {
			first = min(first, it.Next)
		}
	}
	if first != never {
		m.store.due.lower(sh.shard, first)
	}
}

// absorb notes the codes of a shard's call and returns the items to send again.
func (m *merging) absorb(c *call, sh *mergeShard) (again []int) {
	codes, _ := c.reply[2].(string)
	targets, _ := c.reply[3].([]any)
	for ; len(targets) >= 2; targets = targets[2:] {
		at, _ := targets[0].(int64)
		m.waits[sh.index[at-1]], _ = targets[1].(string)
	}
	for k, i := range sh.index {
		switch codes[k] {
		case 'w':
			again = append(again, i)
			continue
		case 'k':
			m.results[i] = job.Kept
		case 'j':
			m.results[i] = job.Joined
		case 'b':
			m.results[i] = job.Busy
		}
		m.store.answered(&m.items[i].Job)
	}
	return again
}
