package redisdelay

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

const (
	refLen       = 20 // of a run state, what a Ref must match: incarnation, attempt, nonce
	maxReasonLen = 255
	maxWaitKeys  = 64 // of one call
)

// Settle implements [job.Store].
func (s *Store) Settle(ctx context.Context, now job.Time, list []job.Settlement) ([]job.SettleResult, error) {
	if err := s.lock(ctx, settleKind); err != nil {
		return nil, err
	}
	defer s.unlock(settleKind)
	s.seen(now)
	results := make([]job.SettleResult, len(list))
	todo := make([]int, len(list))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		var round []*settleShard
		round, todo = s.settleRound(list, todo)
		calls := make([]*call, len(round))
		for i, sh := range round {
			calls[i] = s.settleCall(sh, now, list)
		}
		err := s.runNumbered(ctx, calls)
		for i, sh := range round {
			s.lowerSettled(sh, list)
			if err == nil {
				settleReply(calls[i], sh, results)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// settleShard is what a round sends to one shard.
type settleShard struct {
	shard   int
	index   []int
	ids     map[string]struct{}
	targets []string // of SetAside
	full    bool
}

// settleRound takes as much of todo as one call per shard may hold; an id that
// repeats must wait for the outcome of the first.
func (s *Store) settleRound(list []job.Settlement, todo []int) (round []*settleShard, later []int) {
	shards := make(map[int]*settleShard, 1)
	for _, i := range todo {
		n := s.refShard(&list[i].Ref)
		sh := shards[n]
		if sh == nil {
			sh = &settleShard{shard: n, ids: make(map[string]struct{}, min(len(todo), maxBatch))}
			shards[n] = sh
			round = append(round, sh)
		}
		if !sh.add(i, &list[i]) {
			later = append(later, i)
		}
	}
	return round, later
}

// refShard is the shard that the id is in, whatever the Ref says: a token may
// be old, or made up.
func (s *Store) refShard(r *job.Ref) int { return shardOf(r.ID, s.opts.Shards) }

func (sh *settleShard) add(i int, st *job.Settlement) bool {
	_, repeats := sh.ids[st.ID]
	newTarget := st.Outcome == job.SetAside && !slices.Contains(sh.targets, st.Target)
	if sh.full || repeats || len(sh.index) >= maxBatch || newTarget && len(sh.targets) >= maxWaitKeys {
		sh.full = true
		return false
	}
	sh.ids[st.ID] = struct{}{}
	sh.index = append(sh.index, i)
	if newTarget {
		sh.targets = append(sh.targets, st.Target)
	}
	return true
}

func (s *Store) settleCall(sh *settleShard, now job.Time, list []job.Settlement) *call {
	keys := make([]string, len(sh.targets))
	for i, t := range sh.targets {
		keys[i] = waitKey(s.opts.Prefix, sh.shard, t)
	}
	n := len(sh.index)
	ops, heads := make([]byte, n), make([]byte, 0, refLen*n)
	for k, i := range sh.index {
		ops[k] = settleOp(&list[i])
		heads = appendRef(heads, &list[i].Ref)
	}
	c := s.newNumbered(settleKind, sh.shard, 5+3*n, keys...)
	c.add(int64(now), s.opts.DoneCap, s.opts.DoneGeneratedCap, ops, heads)
	for _, i := range sh.index {
		c.add(list[i].ID)
	}
	for _, i := range sh.index {
		switch st := &list[i]; st.Outcome {
		case job.SetAside:
			c.add(int64(st.At), slices.Index(sh.targets, st.Target)+1)
		case job.Bury:
			c.add(st.Reason[:min(len(st.Reason), maxReasonLen)])
		case job.Retry, job.Release, job.Extend:
			c.add(int64(st.At))
		case job.Complete:
			c.add(appendEnded(nil, now, st))
		}
	}
	return c
}

// appendEnded appends what a done hash keeps of a job that is complete; nothing
// when the settlement does not say enough.
func appendEnded(dst []byte, now job.Time, st *job.Settlement) []byte {
	if st.Due == 0 || st.Target == "" {
		return dst
	}
	generated := byte('0')
	if st.Generated {
		generated = '1'
	}
	dst = appendRef(append(dst, 'd'), &st.Ref)
	dst = binary.BigEndian.AppendUint64(dst, uint64(now))
	dst = binary.BigEndian.AppendUint64(dst, uint64(st.Due))
	return append(append(dst, generated), st.Target...)
}

func settleOp(st *job.Settlement) byte {
	switch st.Outcome {
	case job.Retry:
		return 't'
	case job.Release:
		return 'l'
	case job.SetAside:
		return 'w'
	case job.Bury:
		return 'b'
	case job.Extend:
		return 'e'
	}
	if st.Generated {
		return 'g'
	}
	return 'c'
}

// appendRef appends what the run state must begin with. A Ref without a nonce
// names no delivery and must not match a job that is idle.
func appendRef(dst []byte, r *job.Ref) []byte {
	nonce := r.Nonce
	attempt := r.Attempt
	if nonce == 0 {
		attempt = ^uint32(0)
	}
	dst = binary.BigEndian.AppendUint64(dst, r.Incarnation)
	dst = binary.BigEndian.AppendUint32(dst, attempt)
	return binary.BigEndian.AppendUint64(dst, nonce)
}

// lowerSettled tells Claim about jobs given back; also after an error, because
// it may have happened.
func (s *Store) lowerSettled(sh *settleShard, list []job.Settlement) {
	first := never
	for _, i := range sh.index {
		switch st := &list[i]; st.Outcome {
		case job.Retry, job.Release:
			first = min(first, st.At)
		case job.SetAside:
			s.lowerWaiting(sh.shard, st.Target, st.At)
		}
	}
	if first != never {
		s.due.lower(sh.shard, first)
	}
}

func (s *Store) lowerWaiting(shard int, target string, at job.Time) {
	s.mu.Lock()
	h := s.waiting[target]
	s.mu.Unlock()
	if h != nil {
		h.lower(shard, at)
	}
}

func settleReply(c *call, sh *settleShard, results []job.SettleResult) {
	ex, _ := c.reply[2].([]any)
	for ; len(ex) >= 2; ex = ex[2:] {
		at, _ := ex[0].(int64)
		code, _ := ex[1].(string)
		switch i := sh.index[at-1]; code {
		case "r":
			results[i] = job.Repeated
		case "s":
			results[i] = job.Stale
		default:
			results[i] = job.Unknown
		}
	}
}

// Expired implements [job.Store].
func (s *Store) Expired(ctx context.Context, now job.Time, max int) ([]job.Delivery, job.Time, error) {
	calls := make([]*call, len(s.keys))
	for shard := range calls {
		calls[shard] = s.newCall(expiredScript, shard)
		calls[shard].add(int64(now), min(max, maxBatch))
	}
	if err := s.runRead(ctx, calls); err != nil {
		return nil, 0, err
	}
	next := never
	var lists [][]job.Delivery
	for _, c := range calls {
		if t, _ := c.reply[0].(string); t != "" {
			next = min(next, parseTime(t))
		}
		lists = append(lists, s.expiredReply(c))
	}
	out := merge(lists, func(d *job.Delivery) job.Time { return d.Deadline })
	if len(out) > max {
		next = min(next, out[max].Deadline)
		out = out[:max]
	}
	if next == never {
		next = 0
	}
	return out, next, nil
}

func (s *Store) expiredReply(c *call) []job.Delivery {
	ids, ends, recs, owns := c.strings(1), c.strings(2), c.strings(3), c.strings(4)
	list := make([]job.Delivery, 0, len(ids))
	for i, id := range ids {
		d, err := s.delivery(id, recs[i], owns[i])
		if err != nil {
			s.opts.Logger.Error("redis: job not readable", "shard", c.shard, "error", err)
			continue
		}
		d.Shard, d.Deadline = uint16(c.shard), parseTime(ends[i])
		list = append(list, d)
	}
	return list
}
