package integration

import (
	"fmt"
	"time"
)

func (s *system) buckets(target string, from, to time.Time) {
	type b struct {
		n   int
		max time.Duration
		at  time.Time
	}
	m := map[int]*b{}
	for _, d := range s.Deliveries(target) {
		if d.Due.Before(from) || !d.Due.Before(to) {
			continue
		}
		k := int(d.Due.Sub(from) / (50 * time.Millisecond))
		if m[k] == nil {
			m[k] = &b{}
		}
		m[k].n++
		if l := d.At.Sub(d.Due); l > m[k].max {
			m[k].max, m[k].at = l, d.At
		}
	}
	for k := 0; k < 200; k++ {
		if m[k] != nil && m[k].max > 20*time.Millisecond {
			fmt.Printf("%4dms n=%d max=%v delivered at +%v\n", k*50, m[k].n, m[k].max, m[k].at.Sub(from))
		}
	}
}
