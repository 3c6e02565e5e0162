package failover_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

// directed is the target whose jobs are given to workers.
const directed = "t.directed"

var modelWorkers = []string{"w1", "w2", "w3"}

// claimSlots gives jobs to workers.
func (m *model) claimSlots(rnd *rand.Rand) {
	start := m.clock.Add(1)
	t := now()
	r := job.ClaimRequest{Now: t, Until: t, Max: 1 + rnd.IntN(60), Target: directed}
	free := map[string]int{}
	for _, w := range modelWorkers {
		n := rnd.IntN(30)
		r.Slots, free["b1/"+w] = append(r.Slots, job.Slot{Owner: "b1/" + w, Free: n}), n
	}
	if c, err := m.store.Claim(context.Background(), r); err == nil {
		m.given(start, c.Deliveries, free, r.Max)
	}
}

// given takes in deliveries to workers with so many free slots.
func (m *model) given(start uint64, ds []job.Delivery, free map[string]int, limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range ds {
		if free[d.Owner]--; free[d.Owner] < 0 || d.Target != directed {
			m.Errorf("%s of %s is given to %q, which has no slot free", d.ID, d.Target, d.Owner)
		}
		m.stats.slotted++
		m.delivered(start, d)
	}
	if len(ds) > limit {
		m.Errorf("%d deliveries, at most %d were asked for", len(ds), limit)
	}
}

// ownSome has workers claim deliveries that are held.
func (m *model) ownSome(rnd *rand.Rand) {
	m.mu.Lock()
	var list []job.Settlement
	for range min(len(m.held), 1+rnd.IntN(5)) {
		d := &m.held[rnd.IntN(len(m.held))]
		owner := []string{"b1/", "b2/"}[rnd.IntN(2)] + modelWorkers[rnd.IntN(len(modelWorkers))]
		list = append(list, job.Settlement{Ref: d.Ref(), Outcome: job.Own, At: now().Add(time.Second), Owner: owner})
	}
	m.mu.Unlock()
	if len(list) == 0 {
		return
	}
	start := m.clock.Add(1)
	res, err := m.store.Settle(context.Background(), now(), list)
	end := m.clock.Add(1)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range list {
		m.ownedBy(start, end, &list[i], res[i])
	}
}

// ownedBy checks that a worker does not own what another one does.
func (m *model) ownedBy(start, end uint64, t *job.Settlement, res job.SettleResult) {
	l := m.life(t.ID)
	m.note(t.ID, "own of attempt %d by %s: %d", t.Attempt, t.Owner, res)
	_, worker := job.SplitOwner(t.Owner)
	current := l.nonce == t.Nonce && l.attempt == t.Attempt
	switch {
	case res == job.Taken:
		m.stats.taken++
	case res != job.Settled || !current:
	case l.owner != "" && l.owner != worker && l.owned < start:
		m.Errorf("%s owns attempt %d of %s, and so does %s: %q", worker, t.Attempt, t.ID, l.owner, l.history)
	default:
		m.stats.owned++
		l.owner, l.owned = worker, end
	}
	if res == job.Taken && current && l.owner == worker && l.owned < start {
		m.Errorf("%s owned attempt %d of %s, and it is taken: %q", worker, t.Attempt, t.ID, l.history)
	}
}
