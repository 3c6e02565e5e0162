package redisdelay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

const (
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
	for i := range list {
		if int(list[i].Outcome) >= len(settleOps) {
			return nil, fmt.Errorf("redisdelay: settlement of %q: outcome %d is not known", list[i].ID, list[i].Outcome)
		}
	}
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

// settleShard is what a round sends to one shard: first the completions of
// which the caller knows enough, which are one command for all, then the others.
type settleShard struct {
	shard   int
	known   []int
	others  []int
	ids     map[string]struct{}
	targets []string // of SetAside
	full    bool
}

// settleRound takes as much of todo as one call per shard may hold; an id that
// repeats must wait for the outcome of the first.
func (s *Store) settleRound(list []job.Settlement, todo []int) (round []*settleShard, later []int) {
	shards := make(map[int]*settleShard, 1)
	for _, i := range todo {
		// The shard that the id is in, whatever the Ref says: a token may be
		// old, or made up.
		n := shardOf(list[i].ID, s.opts.Shards)
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

func (sh *settleShard) add(i int, st *job.Settlement) bool {
	_, repeats := sh.ids[st.ID]
	newTarget := st.Outcome == job.SetAside && !slices.Contains(sh.targets, st.Target)
	if sh.full || repeats || len(sh.ids) >= maxBatch || newTarget && len(sh.targets) >= maxWaitKeys {
		sh.full = true
		return false
	}
	sh.ids[st.ID] = struct{}{}
	if st.Outcome == job.Complete && st.Due != 0 && st.Target != "" && st.Nonce != 0 {
		sh.known = append(sh.known, i)
	} else {
		sh.others = append(sh.others, i)
	}
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
	var fin []byte
	var chosen, before []any
	for _, i := range sh.known {
		st := &list[i]
		if _, short := job.IDShard(st.ID); short && st.Generated {
			fin = appendFin(fin, now, st)
		} else {
			chosen = append(chosen, st.ID, appendEnded(nil, now, st))
		}
		if st.Attempt > 1 {
			before = append(before, st.ID)
		}
	}
	c := s.newNumbered(settleKind, sh.shard, 8+2*len(sh.known)+len(chosen)+len(before)+2*len(sh.others), keys...)
	c.add(int64(now), s.opts.DoneCap, s.opts.DoneGeneratedCap*finEntry, len(sh.known), fin, len(chosen)/2, len(before))
	s.addKnown(c, sh, list)
	c.add(chosen...)
	c.add(before...)
	addOthers(c, sh, list)
	return c
}

// addKnown adds leases and ids of the completions. The leases share memory.
func (s *Store) addKnown(c *call, sh *settleShard, list []job.Settlement) {
	var buf []byte
	for _, i := range sh.known {
		start := len(buf)
		buf = appendLease(buf, &list[i].Ref)
		c.add(buf[start:len(buf):len(buf)])
	}
	for _, i := range sh.known {
		c.add(list[i].ID)
	}
}

// addOthers adds what is settled one by one.
func addOthers(c *call, sh *settleShard, list []job.Settlement) {
	ops := make([]byte, len(sh.others))
	c.add(ops)
	for k, i := range sh.others {
		st := &list[i]
		ops[k] = settleOp(st)
		c.add(appendLease(nil, &st.Ref))
		switch st.Outcome {
		case job.Complete:
			c.add(int64(st.Attempt))
		case job.Bury:
			c.add(st.Reason[:min(len(st.Reason), maxReasonLen)])
		case job.SetAside:
			c.add(fmt.Sprintf("%016d%s", st.At, st.Target))
		case job.Own:
			c.add(fmt.Sprintf("%016d%s", st.At, cutOwner(st.Owner)))
		default:
			c.add(int64(st.At))
		}
	}
}

func settleOp(st *job.Settlement) byte {
	switch {
	case st.Outcome == job.SetAside && st.Spare:
		return 's'
	case st.Outcome == job.Release && st.Spare:
		return 'L'
	case st.Outcome == job.SetAside && st.Attempt == 1 && st.At == st.Due:
		return 'W'
	}
	return settleOps[st.Outcome]
}

// settleOps are the script's names of the outcomes.
var settleOps = [...]byte{job.Complete: 'c', job.Retry: 't', job.Release: 'l', job.SetAside: 'w', job.Bury: 'b', job.Extend: 'e', job.Own: 'o'}

// finEntry is about what one job takes in a fin string, for its cap.
const finEntry = 64

// appendFin appends what a fin string keeps of a job that is complete.
func appendFin(dst []byte, now job.Time, st *job.Settlement) []byte {
	size := len(dst)
	dst = append(append(dst, 0, 0), st.ID...)
	start := len(dst)
	dst = appendEnded(dst, now, st)
	binary.BigEndian.PutUint16(dst[size:], uint16(len(dst)-start))
	return dst
}

// appendEnded appends what a done hash keeps of a job that is complete.
func appendEnded(dst []byte, now job.Time, st *job.Settlement) []byte {
	generated := byte('0')
	if st.Generated {
		generated = '1'
	}
	dst = appendTag(append(dst, 'd'), &st.Ref)
	dst = binary.BigEndian.AppendUint64(dst, st.Incarnation)
	dst = binary.BigEndian.AppendUint32(dst, st.Attempt)
	dst = binary.BigEndian.AppendUint64(dst, uint64(now))
	dst = binary.BigEndian.AppendUint64(dst, uint64(st.Due))
	return append(append(dst, generated), st.Target...)
}

// lowerSettled tells Claim about jobs given back; also after an error, because
// it may have happened.
func (s *Store) lowerSettled(sh *settleShard, list []job.Settlement) {
	first := never
	for _, i := range sh.others {
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

// at is the settlement that the script numbers so.
func (sh *settleShard) at(n int) int {
	if n <= len(sh.known) {
		return sh.known[n-1]
	}
	return sh.others[n-1-len(sh.known)]
}

func settleReply(c *call, sh *settleShard, results []job.SettleResult) {
	ex, _ := c.reply[2].([]any)
	for ; len(ex) >= 2; ex = ex[2:] {
		at, _ := ex[0].(int64)
		code, _ := ex[1].(string)
		switch i := sh.at(int(at)); code {
		case "r":
			results[i] = job.Repeated
		case "s":
			results[i] = job.Stale
		case "t":
			results[i] = job.Taken
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
	leases, ends, recs, owns, owners := c.strings(1), c.strings(2), c.strings(3), c.strings(4), c.strings(5)
	list := make([]job.Delivery, 0, len(leases))
	for i, lease := range leases {
		j, err := job.DecodeRecord(leaseID(lease), recs[i])
		if err != nil {
			s.opts.Logger.Error("redis: job not readable", "shard", c.shard, "error", err)
			continue
		}
		t := parseTries(owns[i])
		d := job.Delivery{Job: j, Shard: uint16(c.shard), Attempt: t.attempts + 1, Base: t.base, Owner: owners[i], Deadline: parseTime(ends[i])}
		d.Nonce = nonceOf([]byte(lease[len(lease)-tagLen:]), j.Incarnation, d.Attempt)
		list = append(list, d)
	}
	return list
}
