package redisdelay

import (
	"context"
	"encoding/binary"

	"github.com/delaybridge/delaybridge/job"
)

// asked is one id of a request about single jobs, until it is answered.
type asked struct {
	index int
	id    string
	wait  string // target that the job was found set aside for
}

// idRounds sends ids to their shards in rounds of one call per shard, until
// each is answered. build makes a call for ids of one shard; absorb takes its
// reply and returns what must be asked again, with wait set where the job is
// set aside, since scripts may use only keys that they are given.
func (s *Store) idRounds(ctx context.Context, ids []string, run func(context.Context, []*call) error,
	build func(shard int, keys []string, batch []asked) *call, absorb func(c *call, batch []asked) []asked,
) error {
	todo := make([]asked, len(ids))
	for i, id := range ids {
		todo[i] = asked{index: i, id: id}
	}
	for len(todo) > 0 {
		batches, later := s.idBatches(todo)
		calls := make([]*call, len(batches))
		for i, b := range batches {
			shard := shardOf(b[0].id, s.opts.Shards)
			calls[i] = build(shard, s.waitKeysOf(shard, b), b)
		}
		if err := run(ctx, calls); err != nil {
			return err
		}
		todo = nil
		for i, b := range batches {
			todo = append(todo, absorb(calls[i], b)...)
		}
		todo = append(todo, later...)
	}
	return nil
}

// idBatches takes up to maxBatch ids per shard.
func (s *Store) idBatches(todo []asked) (batches [][]asked, later []asked) {
	at := map[int]int{}
	for _, a := range todo {
		shard := shardOf(a.id, s.opts.Shards)
		k, ok := at[shard]
		switch {
		case !ok:
			at[shard] = len(batches)
			batches = append(batches, []asked{a})
		case len(batches[k]) < maxBatch:
			batches[k] = append(batches[k], a)
		default:
			later = append(later, a)
		}
	}
	return batches, later
}

func (s *Store) waitKeysOf(shard int, batch []asked) (keys []string) {
	known := map[string]bool{}
	for _, a := range batch {
		if a.wait != "" && !known[a.wait] {
			known[a.wait] = true
			keys = append(keys, waitKey(s.opts.Prefix, shard, a.wait))
		}
	}
	return keys
}

// Cancel implements [job.Store].
func (s *Store) Cancel(ctx context.Context, now job.Time, list []job.Cancellation) ([]job.Change, error) {
	if err := s.lock(ctx, cancelKind); err != nil {
		return nil, err
	}
	defer s.unlock(cancelKind)
	s.seen(now)
	out := make([]job.Change, len(list))
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	build := func(shard int, keys []string, batch []asked) *call {
		c := s.newNumbered(cancelKind, shard, 2+3*len(batch), keys...)
		c.add(int64(now), s.opts.DoneCap)
		for _, a := range batch {
			l := &list[a.index]
			c.add(a.id, guard(l.Incarnation), letter(l.State))
		}
		return c
	}
	absorb := func(c *call, batch []asked) []asked {
		s.due.forget(c.shard)
		return changes(c, batch, out)
	}
	if err := s.idRounds(ctx, ids, s.runNumbered, build, absorb); err != nil {
		return nil, err
	}
	return out, nil
}

// guard is an incarnation as a record has it, empty for any.
func guard(incarnation uint64) []byte {
	if incarnation == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, incarnation)
}

// letter is a state as scripts name it, empty for any.
func letter(s job.State) []byte {
	if s == "" {
		return nil
	}
	return []byte{mergeStates[s]}
}

// Reschedule implements [job.Store].
func (s *Store) Reschedule(ctx context.Context, list []job.Reschedule) ([]job.Change, error) {
	if err := s.lock(ctx, rescheduleKind); err != nil {
		return nil, err
	}
	defer s.unlock(rescheduleKind)
	out := make([]job.Change, len(list))
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	build := func(shard int, keys []string, batch []asked) *call {
		return s.rescheduleCall(shard, keys, batch, list)
	}
	absorb := func(c *call, batch []asked) []asked {
		s.due.forget(c.shard)
		return changes(c, batch, out)
	}
	if err := s.idRounds(ctx, ids, s.runNumbered, build, absorb); err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Store) rescheduleCall(shard int, keys []string, batch []asked, list []job.Reschedule) *call {
	modes := make([]byte, len(batch))
	c := s.newNumbered(rescheduleKind, shard, 1+4*len(batch), keys...)
	c.add(modes)
	for k, a := range batch {
		r := &list[a.index]
		modes[k] = 'p'
		if r.Requeue {
			modes[k] = 'q'
		}
		c.add(a.id, guard(r.Incarnation), int64(r.Due), binary.BigEndian.AppendUint64(nil, uint64(r.Due)))
	}
	return c
}

// changes notes the codes of a cancel or reschedule and returns the ids to ask
// for again.
func changes(c *call, batch []asked, out []job.Change) (again []asked) {
	codes, _ := c.reply[2].([]any)
	for k, a := range batch {
		code, _ := codes[2*k].(string)
		detail, _ := codes[2*k+1].(string)
		ch := job.Change{ID: a.id, Result: job.ResultUnknown}
		switch code {
		case "w":
			a.wait = detail
			again = append(again, a)
			continue
		case "d":
			ch.Result = job.ResultDone
		case "f":
			ch.Result = job.ResultFinished
		case "r":
			ch.Result = job.ResultRunning
		}
		if len(detail) >= 4 {
			ch.Attempt = binary.BigEndian.Uint32([]byte(detail))
			ch.Owner = detail[4:]
		}
		out[a.index] = ch
	}
	return again
}

// Get implements [job.Store].
func (s *Store) Get(ctx context.Context, ids []string) ([]job.Info, error) {
	return s.get(ctx, ids, nil)
}

// get is Get; of jobs that run it needs to look for no lease where it is given.
func (s *Store) get(ctx context.Context, ids, leases []string) ([]job.Info, error) {
	out := make([]job.Info, len(ids))
	build := func(shard int, keys []string, batch []asked) *call {
		c := s.newCallOf(getScript, shard, 3+len(batch), keys...)
		names, of := ids, "i"
		if leases != nil {
			names, of = leases, "l"
		}
		c.add(s.latest.Load(), s.opts.DedupWindow.Microseconds(), of)
		for _, a := range batch {
			c.add(names[a.index])
		}
		return c
	}
	var broken error
	absorb := func(c *call, batch []asked) (again []asked) {
		for k, a := range batch {
			if k >= len(c.reply) {
				return append(again, batch[k:]...)
			}
			fields := replyStrings(c.reply[k])
			if fields[0] == "W" {
				a.wait = fields[1]
				again = append(again, a)
				continue
			}
			info, err := jobInfo(a.id, c.shard, fields)
			if err != nil {
				broken = err
			}
			out[a.index] = info
		}
		return again
	}
	if err := s.idRounds(ctx, ids, s.runRead, build, absorb); err != nil {
		return nil, err
	}
	return out, broken
}

// Prune implements [job.Store], one shard after the other.
func (s *Store) Prune(ctx context.Context, before job.Time, max int) (int, error) {
	if err := s.lock(ctx, pruneKind); err != nil {
		return 0, err
	}
	defer s.unlock(pruneKind)
	total := 0
	for shard := range s.keys {
		for total < max {
			c := s.newNumbered(pruneKind, shard, 2)
			limit := min(max-total, maxBatch)
			c.add(int64(before), limit)
			if err := s.runNumbered(ctx, []*call{c}); err != nil {
				return total, err
			}
			n, _ := c.reply[2].(int64)
			total += int(n)
			if int(n) < limit {
				break
			}
		}
	}
	return total, nil
}

// Waiting implements [job.Store].
func (s *Store) Waiting(ctx context.Context) ([]string, error) {
	perShard, err := s.waitingTargets(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var out []string
	for _, targets := range perShard {
		for _, t := range targets {
			if !known[t] {
				known[t] = true
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// jobInfo reads one element of the get script's result.
func jobInfo(id string, shard int, f []string) (job.Info, error) {
	info := job.Info{Job: job.Job{ID: id}, Shard: uint16(shard), Stored: job.StoredRedis}
	states := map[string]job.State{
		"p": job.Pending, "w": job.Pending, "r": job.Running, "x": job.Dead, "d": job.Done, "c": job.Cancelled,
	}
	var known bool
	if info.State, known = states[f[0]]; !known {
		return job.Info{Job: job.Job{ID: id}}, nil
	}
	if f[0] == "d" || f[0] == "c" {
		endedInfo(&info, f[1][1:])
		return info, nil
	}
	j, err := job.DecodeRecord(id, f[2])
	if err != nil {
		return info, err
	}
	t := parseTries(f[3])
	info.Job, info.Next = j, parseTime(f[1])
	info.Attempt, info.Base = t.attempts, t.base
	switch info.State {
	case job.Running:
		info.Attempt++
		info.Nonce, info.Owner = nonceOf([]byte(f[4]), j.Incarnation, info.Attempt), f[5]
	case job.Dead:
		info.Reason = t.text
	}
	return info, nil
}

// endedInfo reads an entry of a done hash, without its kind; see appendEnded.
func endedInfo(info *job.Info, entry string) {
	const fixed = tagLen + 8 + 4 + 8 + 8 + 1
	if len(entry) < fixed {
		return
	}
	b := []byte(entry)[tagLen:]
	info.Incarnation = binary.BigEndian.Uint64(b)
	info.Attempt = binary.BigEndian.Uint32(b[8:])
	info.Next = job.Time(binary.BigEndian.Uint64(b[12:]))
	info.Due = job.Time(binary.BigEndian.Uint64(b[20:]))
	info.Generated = b[28] == '1'
	info.Target = entry[fixed:]
}

func replyStrings(v any) []string {
	list, _ := v.([]any)
	out := make([]string, len(list))
	for i, e := range list {
		out[i], _ = e.(string)
	}
	return out
}
