package adapter

import (
	"syscall"
	"time"
)

// nap sleeps for d on this thread, to about 60 us: a Go timer is only good to
// about a millisecond.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // woken early by a signal: the caller looks at the clock again
}
