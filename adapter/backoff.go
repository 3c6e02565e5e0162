package adapter

import (
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = time.Second
	backoffMost  = 10 * time.Minute
)

// backoff is the pause after attempt n (1 for the first) has failed: the n-th
// of steps, whose last one repeats; without steps it doubles from 1 s to 10
// min, with up to a fifth more at random so that jobs which failed together
// do not come back together.
func backoff(steps []time.Duration, n uint32) time.Duration {
	n = max(n, 1)
	if len(steps) > 0 {
		return steps[min(int(n), len(steps))-1]
	}
	d := backoffMost
	if n <= 10 {
		d = min(backoffFirst<<(n-1), backoffMost)
	}
	return min(d+rand.N(d/5+1), backoffMost)
}
