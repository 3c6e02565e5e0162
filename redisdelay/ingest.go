package redisdelay

import (
	"context"
	"encoding/binary"

	"github.com/delaybridge/delaybridge/job"
)

// Limits of one script call: enough to share its fixed cost, little enough
// that Redis is not held for long.
const (
	maxBatch = 256
	maxBytes = 1 << 20
)

// Put implements [job.Store]. Jobs without an id go to one shard, 256 at a
// time; the others to the shard of their id.
func (s *Store) Put(ctx context.Context, jobs []job.Job) ([]job.PutResult, error) {
	results := make([]job.PutResult, len(jobs))
	todo := s.preparePut(jobs, results)
	if err := s.lock(ctx, ingestKind); err != nil {
		return nil, err
	}
	defer s.unlock(ingestKind)
	p := &put{store: s, jobs: jobs, results: results, minted: map[int]bool{}, waits: map[int]string{}}
	for len(todo) > 0 {
		p.begin()
		later := p.fill(todo)
		again, err := p.run(ctx)
		if err != nil {
			return nil, err
		}
		todo = append(again, later...)
	}
	return results, nil
}

// preparePut checks jobs and sets their incarnations; it returns the indexes
// of those that can be stored.
func (s *Store) preparePut(jobs []job.Job, results []job.PutResult) []int {
	todo := make([]int, 0, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if j.Incarnation == 0 {
			j.Incarnation = job.NextIncarnation()
		}
		results[i] = job.PutResult{Due: j.Due, Stored: job.StoredRedis}
		named := *j
		if named.ID == "" {
			named.ID = "to be minted"
		}
		if err := named.Check(); err != nil {
			results[i] = job.PutResult{Err: err}
			continue
		}
		todo = append(todo, i)
	}
	return todo
}

// put is one Put under way; it works in rounds of at most one call per shard.
type put struct {
	store   *Store
	jobs    []job.Job
	results []job.PutResult
	minted  map[int]bool   // ids minted by this Put: nobody can have used them
	waits   map[int]string // target that a replaced job is set aside for
	shards  map[int]*putShard
	order   []*putShard
	buf     []byte // the records of this round
}

// putShard is what a round sends to one shard.
type putShard struct {
	shard int
	index []int
	ids   map[string]bool // chosen ones
	recs  [][2]int        // where in buf
	bytes int
	full  bool
	call  *call
}

func (p *put) begin() {
	p.shards, p.order, p.buf = map[int]*putShard{}, nil, p.buf[:0]
}

// fill takes jobs into this round and returns those that must wait for the
// next, in order: an id that repeats must come after the first one's outcome.
func (p *put) fill(todo []int) (later []int) {
	var fresh *putShard // takes the jobs without an id
	for _, i := range todo {
		j := &p.jobs[i]
		if j.ID != "" {
			if !p.add(p.shard(shardOf(j.ID, p.store.opts.Shards)), i) {
				later = append(later, i)
			}
			continue
		}
		if fresh == nil || fresh.full {
			fresh = p.shard(p.store.nextMintShard())
		}
		if fresh.full {
			later = append(later, i)
			continue
		}
		j.ID, j.Generated = job.NewID(uint16(fresh.shard)), true
		p.minted[i] = true
		p.add(fresh, i)
	}
	return later
}

func (s *Store) nextMintShard() int { return int(s.mint.Add(1) % uint32(s.opts.Shards)) }

func (p *put) shard(n int) *putShard {
	sh := p.shards[n]
	if sh == nil {
		sh = &putShard{shard: n, ids: map[string]bool{}}
		p.shards[n] = sh
		p.order = append(p.order, sh)
	}
	return sh
}

// add takes the job into the round; false when its shard takes no more.
func (p *put) add(sh *putShard, i int) bool {
	j := &p.jobs[i]
	if sh.full || sh.ids[j.ID] {
		sh.full = true
		return false
	}
	if !j.Generated {
		sh.ids[j.ID] = true
	}
	start := len(p.buf)
	p.buf = job.AppendRecord(p.buf, j)
	sh.index = append(sh.index, i)
	sh.recs = append(sh.recs, [2]int{start, len(p.buf)})
	sh.bytes += len(p.buf) - start
	sh.full = len(sh.index) >= maxBatch || sh.bytes >= maxBytes
	return true
}

// run sends the round and returns the jobs that must be put again.
func (p *put) run(ctx context.Context) (again []int, err error) {
	calls := make([]*call, 0, len(p.order))
	for _, sh := range p.order {
		if len(sh.index) > 0 {
			sh.call = p.newCall(sh)
			calls = append(calls, sh.call)
		}
	}
	err = p.store.runNumbered(ctx, calls)
	for _, sh := range p.order {
		p.lowerHead(sh)
		if err == nil && sh.call != nil {
			again = append(again, p.absorb(sh)...)
		}
	}
	return again, err
}

func (p *put) newCall(sh *putShard) *call {
	n := len(sh.index)
	modes := make([]byte, n)
	var keys []string
	for k, i := range sh.index {
		modes[k] = p.mode(i)
		if target, ok := p.waits[i]; ok {
			keys = append(keys, waitKey(p.store.opts.Prefix, sh.shard, target))
		}
	}
	c := p.store.newNumbered(ingestKind, sh.shard, 1+4*n, keys...)
	c.add(modes)
	ids := make([]any, n)
	for k, i := range sh.index {
		ids[k] = p.jobs[i].ID
		c.add(ids[k], p.buf[sh.recs[k][0]:sh.recs[k][1]])
	}
	for k, i := range sh.index {
		c.add(int64(p.jobs[i].Due), ids[k])
	}
	return c
}

func (p *put) mode(i int) byte {
	switch {
	case p.minted[i]:
		return 'g'
	case p.jobs[i].Generated:
		return 'G'
	case p.jobs[i].Replace:
		return 'r'
	}
	return 'c'
}

// lowerHead tells Claim about the jobs; also after an error, because they may
// have been stored.
func (p *put) lowerHead(sh *putShard) {
	if len(sh.index) == 0 {
		return
	}
	first := never
	for _, i := range sh.index {
		first = min(first, p.jobs[i].Due)
	}
	p.store.due.lower(sh.shard, first)
}

// absorb notes the exceptions of a shard's call and returns the jobs to put
// again.
func (p *put) absorb(sh *putShard) (again []int) {
	ex, _ := sh.call.reply[2].([]any)
	for ; len(ex) >= 3; ex = ex[3:] {
		at, _ := ex[0].(int64)
		code, _ := ex[1].(string)
		detail, _ := ex[2].(string)
		i := sh.index[at-1]
		switch code {
		case "c":
			p.jobs[i].ID = ""
			again = append(again, i)
		case "w":
			p.waits[i] = detail
			again = append(again, i)
		default:
			p.results[i] = putException(p.jobs[i].ID, code, detail)
		}
	}
	return again
}

func putException(id, code, detail string) job.PutResult {
	switch code {
	case "d":
		due := job.Time(binary.BigEndian.Uint64([]byte(detail)))
		return job.PutResult{Duplicate: true, Due: due, Stored: job.StoredRedis}
	case "r":
		return job.PutResult{Err: job.ErrConflict.With("job %q is running and cannot be replaced", id)}
	default:
		return job.PutResult{Err: job.ErrConflict.With("job id %q is in use under another first token of the target", id)}
	}
}
