//go:build failpoint

package failpoint

import "testing"

func TestParse(t *testing.T) {
	for _, c := range []struct {
		value string
		point Point
		nth   int64
	}{
		{"leased", Leased, 1},
		{"completed:12", Completed, 12},
		{"", "", 0},
		{"nowhere", "", 0},
		{"leased:", "", 0},
		{"leased:0", "", 0},
		{"leased:x", "", 0},
	} {
		p, nth, err := parse(c.value)
		if p != c.point || nth != c.nth || (err == nil) != (c.nth > 0) {
			t.Errorf("parse(%q) = %q, %d, %v; want %q, %d", c.value, p, nth, err, c.point, c.nth)
		}
	}
}
