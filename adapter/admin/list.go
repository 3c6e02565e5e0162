package admin

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

const (
	defaultLimit, maxLimit = 100, 1000
	// maxScan is how many jobs one call looks at for those that a pattern matches.
	maxScan = 10_000
	// leastSeen is what a page counts as at least: it may be short because the store
	// has looked at many.
	leastSeen = 100
	// scanTime is how long a call looks for jobs that are few among others.
	scanTime = time.Second
	// purgeTime is how long one purge works; then it says that there is more. Other
	// bridges need as long, after it.
	purgeTime = 2 * time.Second
	// storedLocal asks for what disks hold.
	storedLocal = "local"
)

// selection is which jobs a call is about.
type selection struct {
	exact   string           // one target; empty: those that match
	matcher subjects.Matcher // without patterns: all
}

// selectTargets reads the target or pattern of a body. In the target form it must be
// the same, or missing.
func (c *call) selectTargets(pattern string) (sel selection, err error) {
	if c.target != "" {
		if pattern != "" && pattern != c.target {
			return sel, job.ErrTarget.With("field \"target\" is %.64q, but the subject is that of the target %.64q", pattern, c.target)
		}
		return selection{exact: c.target}, nil
	}
	if pattern == "" || pattern == ">" {
		return sel, nil
	}
	if sel.matcher, err = subjects.NewMatcher([]string{pattern}); err != nil {
		return sel, job.ErrTarget.With("field \"target\": %v", err)
	}
	if !isPattern(pattern) {
		sel.exact = pattern
	}
	return sel, nil
}

// explicit returns the target or pattern that a call must give.
func (c *call) explicit(pattern string) (string, error) {
	if pattern == "" && c.target == "" {
		return "", job.ErrTarget.With(`field "target" is missing: give a target, a pattern, or > for all`)
	}
	if _, err := c.selectTargets(pattern); err != nil {
		return "", err
	}
	if c.target != "" {
		return c.target, nil
	}
	return pattern, nil
}

// isPattern reports whether a valid subject has wildcards.
func isPattern(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "*" || token == ">" {
			return true
		}
	}
	return false
}

func (sel *selection) has(target string) bool {
	if sel.exact != "" {
		return sel.exact == target
	}
	return sel.matcher.Empty() || sel.matcher.Match(target)
}

func (s *Service) list(ctx context.Context, c *call) (any, error) {
	req := api.ListRequest{State: job.Pending, Limit: defaultLimit}
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	sel, err := c.checkList(&req)
	if err != nil {
		return nil, err
	}
	index := s.index(c)
	if req.Stored == storedLocal {
		index = s.local()
	}
	own, err := s.scan(ctx, index, &sel, &req)
	if err != nil {
		return nil, err
	}
	pages, err := askPeers[api.Page](ctx, s, c, peerTimeout)
	if err != nil {
		return nil, err
	}
	return s.fit(mergePages(append(pages, own), req.Limit)), nil
}

func (c *call) checkList(req *api.ListRequest) (selection, error) {
	if req.State != job.Pending && req.State != job.Running && req.State != job.Dead {
		return selection{}, job.ErrHeader.With(`field "state" is %.32q, which cannot be listed: use pending, running or dead`, req.State)
	}
	if req.Limit < 1 || req.Limit > maxLimit {
		return selection{}, job.ErrHeader.With(`field "limit" is %d: use 1 to %d`, req.Limit, maxLimit)
	}
	if req.Stored != "" && req.Stored != storedLocal {
		return selection{}, job.ErrHeader.With(`field "stored" is %.32q: use local, or leave it out`, req.Stored)
	}
	if req.Cursor != "" {
		if _, _, err := job.ParseCursor(req.Cursor); err != nil {
			return selection{}, err
		}
	}
	return c.selectTargets(req.Target)
}

// scan returns the first jobs of an index after the cursor that are selected. It
// stops after maxScan jobs or scanTime: the page may be short.
func (s *Service) scan(ctx context.Context, index job.Index, sel *selection, req *api.ListRequest) (api.Page, error) {
	q := job.Query{State: req.State, Target: sel.exact, Limit: req.Limit, Cursor: req.Cursor}
	if !sel.matcher.Empty() && sel.exact == "" {
		q.Limit = maxLimit
	}
	page := api.Page{Jobs: []api.Job{}}
	for seen, end := 0, time.Now().Add(scanTime); seen < maxScan && time.Now().Before(end); {
		p, err := index.List(ctx, q)
		if err != nil {
			return api.Page{}, err
		}
		for i := range p.Jobs {
			if !sel.has(p.Jobs[i].Target) {
				continue
			}
			page.Jobs = append(page.Jobs, jobOf(&p.Jobs[i]))
			if len(page.Jobs) == req.Limit && (p.Cursor != "" || i < len(p.Jobs)-1) {
				page.Cursor = job.CursorOf(&p.Jobs[i])
				return page, nil
			}
		}
		page.Cursor, q.Cursor = p.Cursor, p.Cursor
		if q.Cursor == "" || len(page.Jobs) >= req.Limit {
			break
		}
		seen += max(len(p.Jobs), leastSeen)
	}
	return page, nil
}

// mergePages returns the first jobs of several pages after the same cursor.
func mergePages(pages []api.Page, limit int) api.Page {
	if len(pages) == 1 {
		return pages[0]
	}
	var jobs []api.Job
	var ends []string
	for _, p := range pages {
		jobs = append(jobs, p.Jobs...)
		ends = append(ends, p.Cursor)
	}
	jobs, cursor := job.FirstOf(limit, jobs, ends, placeOf)
	return api.Page{Jobs: jobs, Cursor: cursor}
}

func placeOf(j *api.Job) (job.Time, string) { return job.Time(j.Next.UnixMicro()), string(j.ID) }

// fit cuts a page to what one message holds. A page with jobs keeps one at least.
func (s *Service) fit(page api.Page) api.Page {
	room := s.room() - 1024 // for the cursor
	for i := range page.Jobs {
		data, err := json.Marshal(&page.Jobs[i])
		if room -= int64(len(data)) + 1; err == nil && room >= 0 || i == 0 {
			continue
		}
		page.Jobs = page.Jobs[:i]
		page.Cursor = job.Cursor(placeOf(&page.Jobs[i-1]))
		break
	}
	return page
}

// purge removes what is selected here, then on the other bridges' disks.
func (s *Service) purge(ctx context.Context, c *call) (any, error) {
	req := api.PurgeRequest{State: job.Dead}
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	if req.State != job.Dead && req.State != job.Pending {
		return nil, job.ErrHeader.With(`field "state" is %.32q, which cannot be purged: use pending or dead`, req.State)
	}
	pattern, err := c.explicit(req.Target)
	if err != nil {
		return nil, err
	}
	sel, err := c.selectTargets(pattern)
	if err != nil {
		return nil, err
	}
	total, err := s.purgeIn(ctx, s.index(c), &sel, req.State)
	if err != nil {
		return nil, purgeFailed(err, total.Purged)
	}
	others, err := askPeers[api.Purged](ctx, s, c, s.o.Timeout)
	for _, o := range others {
		total.Purged += o.Purged
		total.More = total.More || o.More
	}
	if err != nil {
		return nil, purgeFailed(err, total.Purged)
	}
	return total, nil
}

func purgeFailed(err error, purged int) error {
	if purged == 0 {
		return err
	}
	e := job.AsError(err)
	return e.With("%s (%d jobs were purged before)", e.Description, purged)
}

// purgeIn removes the selected jobs of an index until the time is up.
func (s *Service) purgeIn(ctx context.Context, index job.Index, sel *selection, state job.State) (p api.Purged, err error) {
	end := time.Now().Add(purgeTime)
	q := job.Query{State: state, Target: sel.exact, Limit: maxLimit}
	for {
		page, err := index.List(ctx, q)
		if err != nil {
			return p, err
		}
		var ids []string
		for i := range page.Jobs {
			if sel.has(page.Jobs[i].Target) {
				ids = append(ids, page.Jobs[i].ID)
			}
		}
		n, err := s.cancelAll(ctx, index, ids)
		p.Purged += n
		if err != nil || page.Cursor == "" {
			return p, err
		}
		if time.Now().After(end) {
			p.More = true
			return p, nil
		}
		q.Cursor = page.Cursor
	}
}

// cancelBatch is how many jobs are cancelled in one call of the store.
const cancelBatch = 250

func (s *Service) cancelAll(ctx context.Context, index job.Index, ids []string) (done int, err error) {
	for len(ids) > 0 {
		n := min(len(ids), cancelBatch)
		changes, err := index.Cancel(ctx, s.o.Bridge.Now(), ids[:n])
		if err != nil {
			return done, err
		}
		for _, c := range changes {
			if c.Result == job.ResultDone {
				done++
			}
		}
		ids = ids[n:]
	}
	return done, nil
}
