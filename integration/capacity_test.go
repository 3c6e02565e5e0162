package integration

import (
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/integration/internal/report"
)

// Workers with capacities of 1, 10 and 100 share one backlog: none ever runs more
// than its capacity, all slots are used, and each job runs once.
func TestCapacities(t *testing.T) {
	onBothDisks(t, func(t *testing.T, kind storeKind) {
		capacities := map[string]int{"one": 1, "ten": 10, "hundred": 100}
		jobs := pick(1000, 10_000)
		w := newWorks(t, kind)
		w.start()
		hands := []*hand{
			w.join("one", "-capacity", "1", "-work", "100ms"),
			w.join("ten", "-capacity", "10", "-work", "100ms"),
			w.join("hundred", "-capacity", "100", "-work", "100ms"),
		}
		owners := w.watchOwners()
		w.spread(jobs, 200*time.Millisecond, crewTarget)
		w.close(Once, hands...)
		most := w.most()
		begin, end := w.span()
		t.Logf("%d jobs of 100 ms in %v on 111 slots; at once at most %v", jobs, end.Sub(begin), most)
		for id, want := range capacities {
			if most[id] != want {
				t.Errorf("worker %s ran %d jobs at once at most, want all of its %d slots used, and no more", id, most[id], want)
			}
			if n := owners.owned(id); n != want {
				t.Errorf("worker %s was given %d jobs at once at most, want %d: what it cannot run yet others may have", id, n, want)
			}
		}
		if rounds := time.Duration(jobs/111+1) * 100 * time.Millisecond; end.Sub(begin) > 3*rounds+time.Second {
			t.Errorf("%d jobs took %v; %v would do if all slots were used", jobs, end.Sub(begin), rounds)
		}
	})
}

// most is how many jobs each worker ran at once at most.
func (c *crew) most() map[string]int {
	now, most := map[string]int{}, map[string]int{}
	for _, r := range c.seen(func(report.Report) bool { return true }) {
		switch r.Event {
		case report.Started:
			now[r.Worker]++
			most[r.Worker] = max(most[r.Worker], now[r.Worker])
		case report.Done, report.Stopped:
			now[r.Worker]--
		}
	}
	return most
}

// span is from the first to the last report about a job.
func (c *crew) span() (begin, end time.Time) {
	for _, r := range c.seen(func(r report.Report) bool { return r.ID != "" }) {
		if at := r.Time(); begin.IsZero() || at.Before(begin) {
			begin = at
		}
		if at := r.Time(); at.After(end) {
			end = at
		}
	}
	return begin, end
}
