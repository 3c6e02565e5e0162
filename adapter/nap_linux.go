package adapter

import (
	"syscall"
	"time"
)

// nap sleeps for d on this thread, to about 60 us, or 10 us after sharpen: a Go
// timer is only good to about a millisecond.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // woken early by a signal: the caller looks at the clock again
}

// sharpen takes the slack from this thread's sleeps, by which the kernel lets
// them last up to 50 us longer to save wake-ups (PR_SET_TIMERSLACK, prctl(2)).
func sharpen() {
	const setTimerSlack, nanosecond = 29, 1
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, nanosecond, 0) // without it naps are only less exact
}
