package memdelay

import (
	"context"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// maxSetAside is how many jobs one Claim sets aside before it stops.
const maxSetAside = 1024

// Claim implements [job.Queue]. It ignores From. When the deliveries cannot be
// made durable they are taken back.
func (s *Store) Claim(ctx context.Context, r job.ClaimRequest) (job.Claimed, error) {
	if full := s.diskFull(); full != nil {
		return job.Claimed{}, full
	}
	if err := s.begin(ctx); err != nil {
		return job.Claimed{}, err
	}
	s.observe(r.Now)
	q := &s.scheduled
	if r.Target != "" {
		if q = s.waiting[r.Target]; q == nil {
			s.mu.Unlock()
			return job.Claimed{}, nil
		}
		r.Blocked = nil
	}
	c, err := s.claim(q, &r)
	pos := s.append()
	s.mu.Unlock()
	if len(c.Deliveries) == 0 {
		return c, err // jobs set aside need not be
	}
	if failed := s.wait(ctx, pos); failed != nil {
		s.unclaim(&r, c.Deliveries)
		return job.Claimed{}, failed
	}
	return c, err
}

// unclaim gives back deliveries that nobody has heard of.
func (s *Store) unclaim(r *job.ClaimRequest, list []job.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := scheduled
	if r.Target != "" {
		to = setAside
	}
	for i := range list {
		ref := list[i].Ref()
		if slot := s.ids.find(ref.ID); slot != 0 && s.entries.at(slot).is(&ref) {
			s.giveBack(slot, to, list[i].Next, 1)
		}
	}
	s.append()
}

func (s *Store) claim(q *heap, r *job.ClaimRequest) (c job.Claimed, err error) {
	blocked := make(map[string]bool, len(r.Blocked))
	for _, target := range r.Blocked {
		blocked[target] = true
	}
	owners, asides := newOwners(r), map[string]bool{}
	for limit := owners.limit(r.Max); len(c.Deliveries) < limit && c.SetAside < maxSetAside; {
		slot, ok := q.due(r.Until)
		if !ok {
			break
		}
		e := s.entries.at(slot)
		c.Last = e.next
		if len(blocked) > 0 && blocked[e.target()] {
			s.move(slot, setAside, e.next)
			s.logChange(slot)
			if c.SetAside++; !asides[e.target()] {
				asides[e.target()] = true
				c.Aside = append(c.Aside, job.Aside{Target: e.target(), Next: e.next})
			}
			continue
		}
		d, err := s.lease(slot, r.Now, owners.next())
		if err != nil {
			return c, err
		}
		c.Deliveries = append(c.Deliveries, d)
	}
	c.NextDue = q.next()
	return c, nil
}

// owners are who gets the deliveries of one claim.
type owners struct {
	slots []job.Slot // what is left of them; none: all go to one
	one   string
	at    int // whose turn it is
}

func newOwners(r *job.ClaimRequest) owners {
	if r.Target == "" || len(r.Slots) == 0 {
		return owners{one: r.Owner}
	}
	return owners{slots: slices.Clone(r.Slots)}
}

// limit returns how many of limit deliveries there is somebody for.
func (o *owners) limit(limit int) int {
	if len(o.slots) == 0 {
		return limit
	}
	free := 0
	for i := range o.slots {
		free += max(0, o.slots[i].Free)
	}
	return min(limit, free)
}

// next returns who gets the next delivery, which must be within the limit.
func (o *owners) next() string {
	if len(o.slots) == 0 {
		return o.one
	}
	for o.slots[o.at].Free <= 0 {
		o.at = (o.at + 1) % len(o.slots)
	}
	s := &o.slots[o.at]
	s.Free--
	o.at = (o.at + 1) % len(o.slots)
	return s.Owner
}

// lease makes the entry in slot running under a new delivery to owner.
func (s *Store) lease(slot uint32, now job.Time, owner string) (job.Delivery, error) {
	e := s.entries.at(slot)
	j, err := job.DecodeRecord(e.id(), e.record())
	if err != nil {
		return job.Delivery{}, err
	}
	run := e.runs()
	run.attempt++
	run.nonce = s.nonce(j.Incarnation, run.attempt, owner)
	run.text = owner
	due := e.next
	s.move(slot, running, max(now, due).Add(j.AckWait))
	s.change(slot)
	d := e.delivery(j)
	d.Next = due
	return d, nil
}

// delivery returns the present delivery of e, whose job is j.
func (e *entry) delivery(j job.Job) job.Delivery {
	return job.Delivery{
		Job: j, Attempt: e.run.attempt, Base: e.run.base, Nonce: e.run.nonce,
		Owner: e.run.text, Deadline: e.next,
	}
}

// Expired implements [job.Queue].
func (s *Store) Expired(ctx context.Context, now job.Time, limit int) ([]job.Delivery, job.Time, error) {
	if err := s.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer s.mu.Unlock()
	s.observe(now)
	var found []uint32
	for len(found) < limit {
		slot, ok := s.running.due(now)
		if !ok {
			break
		}
		s.running.remove(s.entries.at(slot).pos)
		found = append(found, slot)
	}
	next := s.running.next()
	ds := make([]job.Delivery, 0, len(found))
	var failed error
	for _, slot := range found {
		s.running.push(slot)
		e := s.entries.at(slot)
		j, err := job.DecodeRecord(e.id(), e.record())
		if err != nil {
			failed = err
			continue
		}
		ds = append(ds, e.delivery(j))
	}
	return ds, next, failed
}

// Waiting implements [job.Queue]; the targets are sorted.
func (s *Store) Waiting(ctx context.Context) ([]string, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	targets := make([]string, 0, len(s.waiting))
	for target := range s.waiting {
		targets = append(targets, target)
	}
	slices.Sort(targets)
	return targets, nil
}
