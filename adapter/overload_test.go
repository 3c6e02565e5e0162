package adapter

import (
	"testing"
	"time"
)

func TestOverload(t *testing.T) {
	const ms = time.Millisecond
	o := overload{size: 1000}
	at := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		n     int
		want  relief
	}{
		{0, 950, noRelief},
		{10 * ms, 951, noRelief},
		{900 * ms, 980, noRelief},
		{10 * ms, 981, refuseSome}, // about to be full
		{10 * ms, 950, noRelief},   // it was a burst
		{500 * ms, 951, noRelief},
		{999 * ms, 951, noRelief},
		{ms, 951, spillSome}, // for a second
		{0, 901, spillSome},
		{0, 900, noRelief},
		{9999 * ms, 901, spillSome}, // still the same overload
		{10_000 * ms, 901, noRelief},
		{0, 951, noRelief},
		{0, 1000, refuseSome},
		{1000 * ms, 1000, spillSome},
	} {
		at = at.Add(c.after)
		if got := o.look(c.n, at); got != c.want {
			t.Errorf("step %d: %d after %v: %d, want %d", i, c.n, c.after, got, c.want)
		}
	}
}
