package admin

import (
	"context"
	"encoding/json"
	"slices"
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
	// purgeShare is which part of Options.Timeout one purge works; then it says where
	// to go on. Other bridges need as long, after it.
	purgeShare = 0.4
	// maxTarget is how long a target may be: a longer pattern matches none.
	maxTarget = 255
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
	if len(pattern) > maxTarget {
		return sel, job.ErrTarget.With(`field "target" has %d bytes, at most %d are allowed`, len(pattern), maxTarget)
	}
	if sel.matcher, err = subjects.NewMatcher([]string{pattern}); err != nil {
		return sel, job.ErrTarget.With("field \"target\": %v", err)
	}
	if !subjects.IsPattern(pattern) {
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
	end, err := s.beginScan(ctx, c)
	if err != nil {
		return nil, err
	}
	own, err := s.scan(ctx, c, index, &sel, &req)
	end()
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
func (s *Service) scan(ctx context.Context, c *call, index job.Index, sel *selection, req *api.ListRequest) (api.Page, error) {
	q := job.Query{State: req.State, Target: sel.exact, Limit: req.Limit, Cursor: req.Cursor}
	if !sel.matcher.Empty() && sel.exact == "" {
		q.Limit = maxLimit
	}
	page, trail := api.Page{Jobs: []api.Job{}}, []string{req.Cursor}
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
		trail = append(trail, p.Cursor)
		seen += max(len(p.Jobs), leastSeen)
	}
	least := ""
	if n := len(page.Jobs); n > 0 {
		least = job.Cursor(placeOf(&page.Jobs[n-1]))
	}
	page.Cursor = c.veil(trail, least, page.Cursor)
	return page, nil
}

// veil returns the cursor of a call that has looked at jobs up to end, by way of trail.
// In the target form these may be jobs that it may not know of: the cursor is before
// end, as far as it must be to say little of them. It is not before least, nor in the
// first half of what the call has looked at, so that the next one gets on.
func (c *call) veil(trail []string, least, end string) string {
	if c.target == "" || end == "" {
		return end
	}
	if half := trail[(len(trail)-1)/2]; least == "" || half != "" && job.CursorBefore(least, half) {
		least = half
	}
	next, id, err := job.ParseCursor(end)
	if err != nil || least == end {
		return end
	}
	const second, leastID = job.Time(time.Second / time.Microsecond), "\x00"
	veiled := []string{job.Cursor(next-next%second, leastID), job.Cursor(next, leastID)}
	for n := 1; n < len(id); n++ {
		veiled = append(veiled, job.Cursor(next, id[:n]))
	}
	for _, v := range veiled {
		if least == "" || job.CursorBefore(least, v) {
			return v
		}
	}
	return end
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
	if req.Cursor != "" {
		if _, _, err := job.ParseCursor(req.Cursor); err != nil {
			return nil, err
		}
	}
	end, err := s.beginScan(ctx, c)
	if err != nil {
		return nil, err
	}
	total, err := s.purgeIn(ctx, c, s.index(c), &sel, &req)
	end()
	if err != nil {
		return nil, purgeFailed(err, total.Purged)
	}
	others, err := askPeers[api.Purged](ctx, s, c, s.o.Timeout)
	total = sumUp(append(others, total))
	if err != nil {
		return nil, purgeFailed(err, total.Purged)
	}
	return total, nil
}

// sumUp is what several indexes have purged together. All go on where the first of them
// has stopped.
func sumUp(parts []api.Purged) (total api.Purged) {
	for _, p := range parts {
		total.Purged += p.Purged
		if p.Cursor != "" && (total.Cursor == "" || job.CursorBefore(p.Cursor, total.Cursor)) {
			total.Cursor = p.Cursor
		}
	}
	return total
}

func purgeFailed(err error, purged int) error {
	if purged == 0 {
		return err
	}
	e := job.AsError(err)
	return e.With("%s (%d jobs were purged before)", e.Description, purged)
}

// purgeIn removes the selected jobs of an index, after the cursor, until the time is
// up.
func (s *Service) purgeIn(ctx context.Context, c *call, index job.Index, sel *selection, req *api.PurgeRequest) (p api.Purged, err error) {
	end := time.Now().Add(time.Duration(float64(s.o.Timeout) * purgeShare))
	q := job.Query{State: req.State, Target: sel.exact, Limit: maxLimit, Cursor: req.Cursor}
	trail := []string{req.Cursor}
	for {
		page, err := index.List(ctx, q)
		if err != nil {
			return p, err
		}
		var list []job.Cancellation
		for i := range page.Jobs {
			if j := &page.Jobs[i]; sel.has(j.Target) {
				list = append(list, job.Cancellation{ID: j.ID, Incarnation: j.Incarnation, State: req.State})
			}
		}
		n, err := s.cancelAll(ctx, index, list)
		p.Purged += n
		if err != nil || page.Cursor == "" {
			return p, err
		}
		if time.Now().After(end) {
			p.Cursor = c.veil(append(trail, page.Cursor), "", page.Cursor)
			return p, nil
		}
		q.Cursor = page.Cursor
		trail = append(trail, page.Cursor)
	}
}

// cancelBatch is how many jobs are cancelled in one call of the store.
const cancelBatch = 250

func (s *Service) cancelAll(ctx context.Context, index job.Index, list []job.Cancellation) (done int, err error) {
	for part := range slices.Chunk(list, cancelBatch) {
		changes, err := index.Cancel(ctx, s.o.Bridge.Now(), part)
		if err != nil {
			return done, err
		}
		for _, c := range changes {
			if c.Result == job.ResultDone {
				done++
			}
		}
	}
	return done, nil
}
