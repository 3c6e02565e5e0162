package redisdelay

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

const maxBlocked = 64 // wait keys of one call

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

// Claim implements [job.Store]. Max is shared among the shards so that the
// earliest jobs are taken. Of more than 64 blocked targets the rest is ignored:
// their jobs are leased, and the caller sets them aside with Settle.
func (s *Store) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	if err := s.lock(ctx, claimKind); err != nil {
		return job.Claimed{}, err
	}
	defer s.unlock(claimKind)
	s.seen(r.Now)
	deal := newDealer(&r)
	h := s.headsOf(r.Target)
	shards := h.due(r.Until, time.Now(), s.opts.LookEvery)
	shards, err := s.peek(ctx, h, &r, shards)
	if err != nil {
		return job.Claimed{}, err
	}
	asks := plan(shards, r.Until, r.Max)
	if r.From > 0 {
		asks = planPast(shards, r.Until, r.Max)
	}
	calls := make([]*call, len(asks))
	for i, a := range asks {
		calls[i] = s.claimCall(a, &r, deal)
	}
	if err := s.runNumbered(ctx, calls); err != nil {
		for _, a := range asks {
			h.forget(a.shard)
		}
		return job.Claimed{}, err
	}
	return s.claimed(h, asks, calls, &r)
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

// peek reads the heads among shards that are not known, and returns the shards
// that have something due.
func (s *Store) peek(ctx context.Context, h *heads, r *job.ClaimRequest, shards []candidate) ([]candidate, error) {
	var calls []*call
	var asked []candidate
	for _, c := range shards {
		if c.next == unknown {
			calls = append(calls, s.headsCall(c.shard, r))
			asked = append(asked, c)
		}
	}
	if len(calls) == 0 {
		return shards, nil
	}
	if err := s.runRead(ctx, calls); err != nil {
		return nil, err
	}
	for i, c := range asked {
		first, _ := calls[i].reply[0].(string)
		h.set(c, parseHead(first), calls[i].samples(1))
	}
	return h.due(r.Until, time.Time{}, 0), nil
}

func (s *Store) headsCall(shard int, r *job.ClaimRequest) *call {
	set := s.keys[shard][dueKey]
	if r.Target != "" {
		set = waitKey(s.opts.Prefix, shard, r.Target)
	}
	c := s.newCall(headsScript, shard, set)
	c.add(int64(r.Until), s.sampleStep(r.Max), int64(r.Until))
	return c
}

// sampleStep is the distance of the samples that a claim of max jobs needs.
func (s *Store) sampleStep(max int) int { return max/s.opts.Shards + 1 }

// samples reads a field of a reply that samples.lua made.
func (c *call) samples(i int) []sample {
	list, _ := c.reply[i].([]any)
	var out []sample
	for ; len(list) >= 2; list = list[2:] {
		rank, _ := list[0].(int64)
		score, _ := list[1].(string)
		out = append(out, sample{at: parseHead(score), rank: int(rank)})
	}
	return out
}

// parseHead reads the first score of a set, which may be empty.
func parseHead(score string) job.Time {
	if score == "" {
		return never
	}
	return parseTime(score)
}

func (s *Store) claimCall(a ask, r *job.ClaimRequest, deal *dealer) *call {
	shard, limit := a.shard, min(a.max, maxBatch)
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
	c := s.newNumbered(claimKind, shard, 10, keys...)
	owner := cutOwner(r.Owner)
	tags := newTags(limit, owner)
	c.add(int64(a.until), from, limit, int64(r.Now), owner, tags, source, s.records.chunk(), s.sampleStep(r.Max), int64(r.Until))
	deal.add(c, tags)
	return c
}

// claimed puts together what the shards returned.
func (s *Store) claimed(h *heads, asks []ask, calls []*call, r *job.ClaimRequest) (job.Claimed, error) {
	var out job.Claimed
	lists := make([][]job.Delivery, 0, len(calls))
	for i, c := range calls {
		list, err := s.claimReply(c, h, asks[i].candidate, r, &out)
		if err != nil {
			return job.Claimed{}, err
		}
		lists = append(lists, list)
	}
	out.Deliveries = merge(lists, func(d *job.Delivery) job.Time { return d.Next })
	out.NextDue = h.first()
	if r.Target != "" && out.NextDue == 0 {
		s.dropHeads(r.Target, h)
	}
	if out.SetAside > 0 {
		s.forgetWaiting(out.Aside, asks)
	}
	return out, nil
}

// merge puts lists, each in the order of key, together in that order.
func merge(lists [][]job.Delivery, key func(*job.Delivery) job.Time) []job.Delivery {
	if len(lists) == 1 {
		return lists[0]
	}
	total := 0
	for _, l := range lists {
		total += len(l)
	}
	out := make([]job.Delivery, 0, total)
	for len(out) < total {
		first := -1
		for i, l := range lists {
			if len(l) > 0 && (first < 0 || key(&l[0]) < key(&lists[first][0])) {
				first = i
			}
		}
		out = append(out, lists[first][0])
		lists[first] = lists[first][1:]
	}
	return out
}

// Where the tags are in a claim's ARGV, and the owners of slots.
const (
	claimTags   = numCommonArgs + 5
	claimOwners = numCommonArgs + 10
)

// The fields of a claim's reply.
const (
	claimNext = iota + 2
	claimLast
	claimAside
	claimIDs
	claimRecords
	claimExceptions
	claimSamples
)

// claimReply adds one shard's reply to out and returns its deliveries.
func (s *Store) claimReply(c *call, h *heads, from candidate, r *job.ClaimRequest, out *job.Claimed) ([]job.Delivery, error) {
	if len(c.reply) <= claimSamples {
		return nil, errReply
	}
	next, _ := c.reply[claimNext].(string)
	h.set(from, parseHead(next), c.samples(claimSamples))
	if last, ok := c.reply[claimLast].(int64); ok {
		out.Last = max(out.Last, job.Time(last))
	}
	c.setAside(out)
	return s.claimedJobs(c, r), nil
}

// setAside adds what one shard's reply says of jobs set aside to out.
func (c *call) setAside(out *job.Claimed) {
	told, _ := c.reply[claimAside].([]any)
	if len(told) == 0 {
		return
	}
	n, _ := told[0].(int64)
	out.SetAside += int(n)
	for told = told[1:]; len(told) >= 2; told = told[2:] {
		target, _ := told[0].(string)
		first, _ := told[1].(string)
		a := job.Aside{Target: target, Next: parseTime(first)}
		if i := slices.IndexFunc(out.Aside, func(o job.Aside) bool { return o.Target == target }); i < 0 {
			out.Aside = append(out.Aside, a)
		} else {
			out.Aside[i].Next = min(out.Aside[i].Next, a.Next)
		}
	}
}

// claimedJobs reads the deliveries of one shard's reply.
func (s *Store) claimedJobs(c *call, r *job.ClaimRequest) []job.Delivery {
	ids, recs := c.strings(claimIDs), c.strings(claimRecords)
	tags := c.args[c.argv+claimTags].([]byte)
	exceptions, _ := c.reply[claimExceptions].([]any)
	list := make([]job.Delivery, 0, len(ids))
	for i, id := range ids {
		j, err := job.DecodeRecord(id, recs[i])
		s.records.note(len(recs[i]))
		d := job.Delivery{Job: j, Shard: uint16(c.shard), Attempt: 1, Next: j.Due, Owner: cutOwner(r.Owner)}
		tag := tags[tagLen*i : tagLen*(i+1)]
		if len(exceptions) >= 2 && exceptions[0] == int64(i+1) {
			text, _ := exceptions[1].(string)
			exceptions = exceptions[2:]
			tag = applyException(&d, []byte(text), tag)
		}
		d.Nonce = nonceOf(tag, d.Incarnation, d.Attempt)
		if owners := c.args[c.argv+claimOwners:]; len(owners) > 0 {
			d.Owner = string(owners[tagIndex(tags, tag, i)].([]byte)[tagLen:])
		}
		if err != nil {
			s.opts.Logger.Error("redis: job not readable; its lease will end", "shard", c.shard, "error", err)
			continue
		}
		d.Deadline = max(r.Now, d.Next).Add(d.AckWait)
		list = append(list, d)
	}
	return list
}

// applyException sets what the script says of a delivery that is not a first
// one, or that is returned again, and returns its tag.
func applyException(d *job.Delivery, b, tag []byte) []byte {
	if len(b) < triesLen {
		return tag
	}
	d.Attempt, d.Base = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	d.Next = job.Time(binary.BigEndian.Uint64(b[8:]))
	if len(b) == triesLen+tagLen {
		return b[triesLen:]
	}
	return tag
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
func (s *Store) forgetWaiting(aside []job.Aside, asks []ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range aside {
		if h := s.waiting[a.Target]; h != nil {
			for _, ask := range asks {
				h.forget(ask.shard)
			}
		}
	}
}
