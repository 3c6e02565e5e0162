package job_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

// spot is all that FirstOf needs of a job.
type spot struct {
	next job.Time
	id   string
}

func (s spot) cursor() string { return job.Cursor(s.next, s.id) }

func placeOf(s *spot) (job.Time, string) { return s.next, s.id }

func TestFirstOf(t *testing.T) {
	a, b, c, d := spot{1, "a"}, spot{1, "b"}, spot{2, "a"}, spot{3, "d"}
	for _, tt := range []struct {
		name  string
		limit int
		jobs  []spot
		ends  []string
		want  []spot
		next  string
	}{
		{"nothing", 3, nil, []string{"", ""}, nil, ""},
		{"all of it", 9, []spot{c, d, a, b}, []string{"", ""}, []spot{a, b, c, d}, ""},
		{"the limit cuts", 2, []spot{c, d, a, b}, []string{"", ""}, []spot{a, b}, b.cursor()},
		{"exactly the limit", 4, []spot{c, d, a, b}, []string{"", ""}, []spot{a, b, c, d}, ""},
		{"one page was cut", 9, []spot{a, c, b, d}, []string{c.cursor(), ""}, []spot{a, b, c}, c.cursor()},
		{"two pages were cut", 9, []spot{a, c, b, d}, []string{c.cursor(), b.cursor()}, []spot{a, b}, b.cursor()},
		{"a page was cut before its first job", 9, []spot{c, d}, []string{b.cursor(), ""}, []spot{}, b.cursor()},
		{"the same job in two pages", 9, []spot{a, b, a, d}, []string{"", ""}, []spot{a, b, d}, ""},
		{"the same job does not count twice", 2, []spot{a, b, a}, []string{"", ""}, []spot{a, b}, ""},
	} {
		got, next := job.FirstOf(tt.limit, slices.Clone(tt.jobs), tt.ends, placeOf)
		if !slices.Equal(got, tt.want) || next != tt.next {
			t.Errorf("%s: %v, %q; want %v, %q", tt.name, got, next, tt.want, tt.next)
		}
	}
}

// TestFirstOfPages walks through stores whose pages are as short as they please: every
// job comes once, in order, whatever several of them hold.
func TestFirstOfPages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		stores := make([][]spot, 1+r.IntN(3))
		all := map[spot]bool{}
		for i := range stores {
			for range r.IntN(20) {
				s := spot{job.Time(r.IntN(5)), fmt.Sprint(r.IntN(6))}
				all[s] = true
				if !slices.Contains(stores[i], s) {
					stores[i] = append(stores[i], s)
				}
			}
			slices.SortFunc(stores[i], compareSpots)
		}
		var got []spot
		for cursor, pages := "", 0; ; pages++ {
			var jobs []spot
			var ends []string
			for _, s := range stores {
				page, end := pageAfter(s, cursor, r.IntN(4))
				jobs, ends = append(jobs, page...), append(ends, end)
			}
			jobs, cursor = job.FirstOf(3, jobs, ends, placeOf)
			got = append(got, jobs...)
			if cursor == "" {
				break
			}
			if pages > 1000 {
				t.Fatalf("no end of %v", stores)
			}
		}
		if !slices.IsSortedFunc(got, compareSpots) || len(got) != len(all) {
			t.Fatalf("%v of %v", got, stores)
		}
	}
}

func compareSpots(a, b spot) int {
	return job.ByNext(job.Info{Job: job.Job{ID: a.id}, Next: a.next}, job.Info{Job: job.Job{ID: b.id}, Next: b.next})
}

// pageAfter returns up to n jobs after a cursor, at least one if there are any.
func pageAfter(sorted []spot, cursor string, n int) (page []spot, end string) {
	for _, s := range sorted {
		if cursor != "" && !job.CursorBefore(cursor, s.cursor()) {
			continue
		}
		if len(page) == max(n, 1) {
			return page, page[len(page)-1].cursor()
		}
		page = append(page, s)
	}
	return page, ""
}
