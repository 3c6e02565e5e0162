package redisdelay

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/delaybridge/delaybridge/job"
)

// maxPage is the most jobs of one page.
const maxPage = 1000

// minRead is how many entries of a set are at least read for a page, so that it is
// not too short where one set has the most.
const minRead = 100

// position is a place in the order of a list: behind the entry (at, id).
type position struct {
	set bool
	at  job.Time
	id  string
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(p.id, q.id))
}

func (p position) cursor() string { return job.Cursor(p.at, p.id) }

// score is the time as scripts take it, "": the start.
func (p position) score() string {
	if !p.set {
		return ""
	}
	return strconv.FormatInt(int64(p.at), 10)
}

func parseCursor(cursor string) (position, error) {
	if cursor == "" {
		return position{}, nil
	}
	at, id, err := job.ParseCursor(cursor)
	return position{set: true, at: at, id: id}, err
}

// source is one sorted set of a list.
type source struct {
	shard int
	key   string
}

// entry is one job found in a source.
type entry struct {
	position
	shard int
}

// List implements [job.Store]. A page is the merge of what each sorted set has
// behind the cursor, cut where the first of them was not read further.
func (s *Store) List(ctx context.Context, q job.Query) (job.Page, error) {
	from, err := parseCursor(q.Cursor)
	if err != nil {
		return job.Page{}, err
	}
	if q.Limit < 1 || q.Limit > maxPage {
		return job.Page{}, job.ErrHeader.With("limit %d: use 1 to %d", q.Limit, maxPage)
	}
	sources, err := s.sources(ctx, q)
	if err != nil {
		return job.Page{}, err
	}
	var rest *position
	if q.Target == "" { // else what a set begins with may not be on the page
		if sources, rest, err = s.nearest(ctx, sources, from, q.Limit); err != nil {
			return job.Page{}, err
		}
	}
	entries, end, err := s.readSources(ctx, sources, from, q)
	if err != nil {
		return job.Page{}, err
	}
	if rest != nil { // where the sets begin that were not read
		cut, _ := slices.BinarySearchFunc(entries, *rest, func(e entry, p position) int { return e.compare(p) })
		if entries = entries[:cut]; cut == 0 {
			return s.List(ctx, q) // all that was near has been taken meanwhile
		}
		if end == nil || end.compare(*rest) >= 0 {
			end = &entries[cut-1].position
		}
	}
	if len(entries) > q.Limit {
		entries = entries[:q.Limit]
		end = &entries[q.Limit-1].position
	}
	return s.page(ctx, q, entries, end)
}

// sources are the sorted sets that hold jobs of the state.
func (s *Store) sources(ctx context.Context, q job.Query) ([]source, error) {
	set := map[job.State]int{"": dueKey, job.Pending: dueKey, job.Running: infKey, job.Dead: deadKey}
	key, ok := set[q.State]
	if !ok {
		return nil, job.ErrHeader.With("state %q cannot be listed: use pending, running or dead", q.State)
	}
	var out []source
	for shard := range s.keys {
		out = append(out, source{shard, s.keys[shard][key]})
	}
	if key != dueKey {
		return out, nil
	}
	waiting, err := s.waitingTargets(ctx)
	if err != nil {
		return nil, err
	}
	for shard, targets := range waiting {
		for _, t := range targets {
			if q.Target == "" || q.Target == t {
				out = append(out, source{shard, waitKey(s.opts.Prefix, shard, t)})
			}
		}
	}
	return out, nil
}

// waitingTargets are the targets with jobs set aside, per shard.
func (s *Store) waitingTargets(ctx context.Context) ([][]string, error) {
	pipe := s.client.Pipeline()
	for shard := range s.keys {
		pipe.SMembers(ctx, s.keys[shard][waitsKey])
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(s.keys))
	for i, c := range cmds {
		out[i] = c.(interface{ Val() []string }).Val()
	}
	return out, nil
}

const (
	// fewSets may be read each by a call of its own.
	fewSets = 64
	// maxFirsts is how many sets one call looks at, and firstsCalls how many calls go
	// out at once.
	maxFirsts   = 256
	firstsCalls = 16
)

// nearest leaves out sources that have nothing on the page: where there are more than
// it has entries, those that begin behind the first limit of them. rest is where the
// first of those begins, nil: none is left out.
func (s *Store) nearest(ctx context.Context, sources []source, from position, limit int) (near []source, rest *position, err error) {
	if len(sources) <= max(limit, fewSets) {
		return sources, nil, nil
	}
	type first struct {
		position
		source
	}
	var all []first
	calls, of := s.firstsCalls(sources, from)
	for n := 0; n < len(calls); n += firstsCalls {
		if err := s.runRead(ctx, calls[n:min(n+firstsCalls, len(calls))]); err != nil {
			return nil, nil, err
		}
	}
	for i, c := range calls {
		ids, scores := c.strings(0), c.strings(1)
		for k, src := range of[i] {
			if ids[k] != "" {
				all = append(all, first{position{true, parseTime(scores[k]), ids[k]}, src})
			}
		}
	}
	slices.SortFunc(all, func(a, b first) int { return a.compare(b.position) })
	for i := range all {
		if i == limit {
			return near, &all[i].position, nil
		}
		near = append(near, all[i].source)
	}
	return near, nil, nil
}

// firstsCalls look at all sources, those of one shard together; of says at which.
func (s *Store) firstsCalls(sources []source, from position) (calls []*call, of [][]source) {
	perShard := make([][]source, len(s.keys))
	for _, src := range sources {
		perShard[src.shard] = append(perShard[src.shard], src)
	}
	for shard, all := range perShard {
		for some := range slices.Chunk(all, maxFirsts) {
			keys := make([]string, len(some))
			for i := range some {
				keys[i] = some[i].key
			}
			c := s.newCallOf(firstsScript, shard, 2, keys...)
			c.add(from.score(), from.id)
			calls, of = append(calls, c), append(of, some)
		}
	}
	return calls, of
}

func (s *Store) listCall(shard int, key string, from position, limit int, target string) *call {
	c := s.newCall(listScript, shard, key)
	idEnd := -1
	if key == s.keys[shard][infKey] {
		idEnd -= tagLen
	}
	c.add(from.score(), from.id, limit, target, idEnd)
	return c
}

// readSources returns what the sources have behind from, in order, as far as
// all of them were read; end is nil when there is no more.
func (s *Store) readSources(ctx context.Context, sources []source, from position, q job.Query) ([]entry, *position, error) {
	// Most sets need not be read as far as the page goes.
	limit := min(q.Limit, max(2*q.Limit/max(len(sources), 1), minRead))
	calls := make([]*call, len(sources))
	for i, src := range sources {
		calls[i] = s.listCall(src.shard, src.key, from, limit, q.Target)
	}
	if err := s.runRead(ctx, calls); err != nil {
		return nil, nil, err
	}
	var all []entry
	var end *position
	for _, c := range calls {
		ids, scores := c.strings(1), c.strings(2)
		for k, id := range ids {
			all = append(all, entry{position: position{true, parseTime(scores[k]), id}, shard: c.shard})
		}
		if done, _ := c.reply[0].(int64); done == 0 {
			score, _ := c.reply[3].(string)
			id, _ := c.reply[4].(string)
			if p := (position{true, parseTime(score), id}); end == nil || p.compare(*end) < 0 {
				end = &p
			}
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return a.compare(b.position) })
	if end != nil {
		cut, found := slices.BinarySearchFunc(all, *end, func(e entry, p position) int { return e.compare(p) })
		if found {
			cut++
		}
		all = all[:cut]
	}
	return all, end, nil
}

// page reads the jobs of the entries. One that has changed since is left out;
// when their records are many bytes the page ends early.
func (s *Store) page(ctx context.Context, q job.Query, entries []entry, end *position) (job.Page, error) {
	ids := make([]string, len(entries))
	for i := range entries {
		ids[i] = entries[i].id
	}
	var leases []string
	if q.State == job.Running {
		leases = slices.Clone(ids)
		for i, lease := range leases {
			ids[i] = leaseID(lease)
		}
	}
	infos, err := s.get(ctx, ids, leases)
	if err != nil {
		return job.Page{}, err
	}
	state := cmp.Or(q.State, job.Pending)
	var p job.Page
	bytes := 0
	for i, info := range infos {
		if bytes > maxBytes {
			end = &entries[i-1].position
			break
		}
		if info.State == state && info.Next == entries[i].at {
			p.Jobs = append(p.Jobs, info)
			bytes += len(info.Payload)
		}
	}
	if end != nil {
		p.Cursor = end.cursor()
	}
	return p, nil
}
