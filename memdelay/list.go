package memdelay

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/delaybridge/delaybridge/job"
)

const (
	// maxPage is the largest page of a List.
	maxPage = 1000
	// maxScan is how many slots a List looks at before it lets others in.
	maxScan = 16 * chunkLen
)

// List implements [job.Index]. It looks at every slot, because a heap has no
// order to page through, but never for long: a job that does not change stays
// in its slot, so others may come in between.
func (s *Store) List(ctx context.Context, q job.Query) (job.Page, error) {
	p, err := newPager(q)
	if err != nil {
		return job.Page{}, err
	}
	for from, more := uint32(0), true; more; from += maxScan {
		if err := s.lock(ctx); err != nil {
			return job.Page{}, err
		}
		to := min(from+maxScan, uint32(s.entries.slots()))
		for slot := from; slot < to; slot++ {
			p.offer(s.entries.at(slot))
		}
		more = to < uint32(s.entries.slots())
		s.mu.Unlock()
	}
	return s.page(ctx, p)
}

// page fetches the jobs that p found, without those that changed since.
func (s *Store) page(ctx context.Context, p *pager) (job.Page, error) {
	if err := s.lock(ctx); err != nil {
		return job.Page{}, err
	}
	defer s.mu.Unlock()
	p.trim()
	page := job.Page{Jobs: make([]job.Info, 0, len(p.found))}
	for _, k := range p.found {
		slot := s.ids.find(k.id)
		if slot == 0 || s.entries.at(slot).next != k.next || !p.wants(s.entries.at(slot)) {
			continue
		}
		info, err := s.info(s.entries.at(slot))
		if err != nil {
			return job.Page{}, err
		}
		page.Jobs = append(page.Jobs, info)
	}
	if p.more {
		page.Cursor = p.found[len(p.found)-1].cursor()
	}
	return page, nil
}

// key is the place of a job in a list.
type key struct {
	next job.Time
	id   string
}

func (k key) compare(other key) int {
	if c := cmp.Compare(k.next, other.next); c != 0 {
		return c
	}
	return strings.Compare(k.id, other.id)
}

func (k key) cursor() string { return job.Cursor(k.next, k.id) }

func parseCursor(cursor string) (key, error) {
	next, id, err := job.ParseCursor(cursor)
	if err == nil && id == "" {
		err = job.ErrHeader.With("cursor %.40q names no job: pass the one of the page before, or none to start", cursor)
	}
	return key{next, id}, err
}

// pager collects the first jobs after a key.
type pager struct {
	state  job.State
	target string
	after  *key // nil: from the start
	limit  int
	found  []key
	more   bool // something was left out
}

func newPager(q job.Query) (*pager, error) {
	p := &pager{state: cmp.Or(q.State, job.Pending), target: q.Target, limit: max(1, min(q.Limit, maxPage))}
	if !slices.Contains([]job.State{job.Pending, job.Running, job.Dead}, p.state) {
		return nil, job.ErrHeader.With("state %.40q cannot be listed; use pending, running or dead", string(q.State))
	}
	if q.Cursor != "" {
		after, err := parseCursor(q.Cursor)
		if err != nil {
			return nil, err
		}
		p.after = &after
	}
	return p, nil
}

// wants reports whether e is of the state and target asked for.
func (p *pager) wants(e *entry) bool {
	return e.place != free && e.state() == p.state && (p.target == "" || e.target() == p.target)
}

// offer takes e into account. Most entries are ruled out by their time alone:
// the id is in memory of its own, which takes long to reach.
func (p *pager) offer(e *entry) {
	if !p.wants(e) || p.after != nil && e.next < p.after.next || p.more && e.next > p.last().next {
		return
	}
	k := key{e.next, e.id()}
	if p.after != nil && k.compare(*p.after) <= 0 || p.more && k.compare(p.last()) > 0 {
		return
	}
	p.found = append(p.found, k)
	if len(p.found) >= 2*p.limit+chunkLen {
		p.trim()
	}
}

// last is the last key of the page; once the page is full nothing behind it
// counts.
func (p *pager) last() key { return p.found[p.limit-1] }

// trim sorts what was found and keeps one page of it.
func (p *pager) trim() {
	slices.SortFunc(p.found, key.compare)
	if len(p.found) > p.limit {
		p.found, p.more = p.found[:p.limit], true
	}
}
