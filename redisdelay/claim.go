package redisdelay

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const (
	maxBlocked  = 64  // wait keys of one call
	headLen     = 24  // of a run state: incarnation, attempt, nonce, base
	maxOwnerLen = 128 // so that a run state stays small
)

// recordSize is about the largest size of the records read of late: it bounds
// how many a script reads before it counts their bytes.
type recordSize struct{ bytes atomic.Int64 }

func (r *recordSize) note(n int) {
	if b := int64(n); b > r.bytes.Load() {
		r.bytes.Store(b)
	}
}

// chunk is how many records may be read at once; each time a little more.
func (r *recordSize) chunk() int {
	b := r.bytes.Load()
	r.bytes.Store(b - b/64)
	return int(min(max(maxBytes/max(b, 1), 1), maxBatch))
}

// Claim implements [job.Store]. Max is shared among the shards that have
// something due. Of more than 64 blocked targets the rest is ignored: their
// jobs are leased, and the caller gives them back.
func (s *Store) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	if err := s.lock(ctx, claimKind); err != nil {
		return job.Claimed{}, err
	}
	defer s.unlock(claimKind)
	s.seen(r.Now)
	h := s.headsOf(r.Target)
	shards, err := s.shardsDue(ctx, h, r)
	if err != nil {
		return job.Claimed{}, err
	}
	calls := make([]*call, len(shards))
	for i, c := range shards {
		calls[i] = s.claimCall(c.shard, share(r.Max, len(shards), i), &r)
	}
	if err := s.runNumbered(ctx, calls); err != nil {
		for _, c := range shards {
			h.forget(c.shard)
		}
		return job.Claimed{}, err
	}
	return s.claimed(h, shards, calls, &r)
}

// share splits max into n parts.
func share(max, n, i int) int {
	part := max / n
	if i < max%n {
		part++
	}
	return min(part, maxBatch)
}

// headsOf returns the heads of the due sets, or of the jobs set aside for a
// target.
func (s *Store) headsOf(target string) *heads {
	if target == "" {
		return s.due
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.waiting[target]
	if h == nil {
		h = newHeads(s.opts.Shards)
		s.waiting[target] = h
	}
	return h
}

// shardsDue chooses the shards to claim from. When there are more than jobs
// wanted, those whose head is not known are looked at first, so that the
// earliest jobs are found.
func (s *Store) shardsDue(ctx context.Context, h *heads, r job.ClaimRequest) ([]candidate, error) {
	shards := h.due(r.Until, time.Now(), s.opts.LookEvery)
	if len(shards) > r.Max {
		if err := s.peek(ctx, h, r.Target, shards); err != nil {
			return nil, err
		}
		shards = h.due(r.Until, time.Time{}, s.opts.LookEvery)
	}
	return shards[:min(len(shards), max(r.Max, 0))], nil
}

// peek reads the heads that are not known.
func (s *Store) peek(ctx context.Context, h *heads, target string, shards []candidate) error {
	var calls []*call
	var asked []candidate
	for _, c := range shards {
		if c.next == unknown {
			calls = append(calls, s.peekCall(c.shard, target))
			asked = append(asked, c)
		}
	}
	if err := s.runRead(ctx, calls); err != nil {
		return err
	}
	for i, c := range asked {
		next := never
		if scores := calls[i].strings(2); len(scores) > 0 {
			next = parseTime(scores[0])
		}
		h.set(c, next)
	}
	return nil
}

func (s *Store) peekCall(shard int, target string) *call {
	set := s.keys[shard][dueKey]
	if target != "" {
		set = waitKey(s.opts.Prefix, shard, target)
	}
	return s.listCall(shard, set, position{}, 1, "")
}

func (s *Store) claimCall(shard, max int, r *job.ClaimRequest) *call {
	from, source := "-inf", "d"
	if r.From > 0 {
		from = strconv.FormatInt(int64(r.From), 10)
	}
	var keys []string
	if r.Target != "" {
		source = "t"
		keys = append(keys, waitKey(s.opts.Prefix, shard, r.Target))
	} else {
		for _, t := range r.Blocked[:min(len(r.Blocked), maxBlocked)] {
			keys = append(keys, waitKey(s.opts.Prefix, shard, t))
		}
	}
	nonces := make([]byte, 8*max)
	rand.Read(nonces)
	owner := r.Owner[:min(len(r.Owner), maxOwnerLen)]
	c := s.newNumbered(claimKind, shard, 8, keys...)
	c.add(int64(r.Until), from, max, int64(r.Now), owner, nonces, source, s.records.chunk())
	return c
}

// claimed puts together what the shards returned.
func (s *Store) claimed(h *heads, shards []candidate, calls []*call, r *job.ClaimRequest) (job.Claimed, error) {
	var out job.Claimed
	lists := make([][]due, 0, len(calls))
	for i, c := range calls {
		list, err := s.claimReply(c, h, shards[i], r, &out)
		if err != nil {
			return job.Claimed{}, err
		}
		lists = append(lists, list)
	}
	out.Deliveries = merge(lists)
	out.NextDue = h.first()
	if r.Target != "" && out.NextDue == 0 {
		s.dropHeads(r.Target, h)
	}
	if out.SetAside > 0 {
		s.forgetWaiting(r.Blocked, shards)
	}
	return out, nil
}

// due is a delivery with the time at which it was due.
type due struct {
	at job.Time
	d  job.Delivery
}

// merge puts lists, each in order, together in order.
func merge(lists [][]due) []job.Delivery {
	all := slices.Concat(lists...)
	if len(lists) > 1 {
		slices.SortStableFunc(all, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	}
	out := make([]job.Delivery, len(all))
	for i := range all {
		out[i] = all[i].d
	}
	return out
}

// The fields of a claim's reply.
const (
	claimNext = iota + 2
	claimLast
	claimAside
	claimIDs
	claimScores
	claimRecords
	claimHeads
)

// claimReply adds one shard's reply to out and returns its deliveries.
func (s *Store) claimReply(c *call, h *heads, from candidate, r *job.ClaimRequest, out *job.Claimed) ([]due, error) {
	if len(c.reply) <= claimHeads {
		return nil, errReply
	}
	next := never
	if t, _ := c.reply[claimNext].(string); t != "" {
		next = parseTime(t)
	}
	h.set(from, next)
	if last, ok := c.reply[claimLast].(string); ok {
		out.Last = max(out.Last, parseTime(last))
	}
	if n, ok := c.reply[claimAside].(int64); ok {
		out.SetAside += int(n)
	}
	ids, scores, recs := c.strings(claimIDs), c.strings(claimScores), c.strings(claimRecords)
	states, _ := c.reply[claimHeads].(string)
	list := make([]due, 0, len(ids))
	for i, id := range ids {
		d, err := s.delivery(id, recs[i], states[i*headLen:(i+1)*headLen])
		if err != nil {
			s.opts.Logger.Error("redis: job not readable; its lease will end", "shard", c.shard, "error", err)
			continue
		}
		d.Shard, d.Owner = uint16(c.shard), r.Owner[:min(len(r.Owner), maxOwnerLen)]
		at := parseTime(scores[i])
		d.Next, d.Deadline = at, max(r.Now, at).Add(d.AckWait)
		list = append(list, due{at, d})
	}
	return list, nil
}

// delivery puts a record and a run state together.
func (s *Store) delivery(id, rec, own string) (job.Delivery, error) {
	j, err := job.DecodeRecord(id, rec)
	if err != nil {
		return job.Delivery{}, err
	}
	s.records.note(len(rec))
	st := parseState(own)
	return job.Delivery{Job: j, Attempt: st.attempt, Base: st.base, Nonce: st.nonce, Owner: st.text}, nil
}

// state is a run state.
type state struct {
	attempt, base uint32
	nonce         uint64
	text          string // owner, or why the job is dead
}

func parseState(own string) state {
	if len(own) < headLen {
		return state{}
	}
	b := []byte(own[8:headLen])
	return state{
		attempt: binary.BigEndian.Uint32(b),
		nonce:   binary.BigEndian.Uint64(b[4:]),
		base:    binary.BigEndian.Uint32(b[12:]),
		text:    own[headLen:],
	}
}

// parseTime reads a score.
func parseTime(score string) job.Time {
	if n, err := strconv.ParseInt(score, 10, 64); err == nil {
		return job.Time(n)
	}
	f, _ := strconv.ParseFloat(score, 64)
	return job.Time(f)
}

// dropHeads forgets a target that has nothing set aside any more.
func (s *Store) dropHeads(target string, h *heads) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[target] == h {
		delete(s.waiting, target)
	}
}

// forgetWaiting makes the next claim of each target ask the shards again.
func (s *Store) forgetWaiting(targets []string, shards []candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range targets {
		if h := s.waiting[t]; h != nil {
			for _, c := range shards {
				h.forget(c.shard)
			}
		}
	}
}
