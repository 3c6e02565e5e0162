//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Variable is the environment variable that arms a point.
const Variable = "FAILPOINT"

var (
	armed Point
	left  atomic.Int64 // how often the process may yet come to the armed point, the last time included
)

func init() {
	value := os.Getenv(Variable)
	if value == "" {
		return
	}
	p, nth, err := parse(value)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s=%q: %v\n", Variable, value, err)
		os.Exit(2)
	}
	armed = p
	left.Store(nth)
}

// parse reads "name" or "name:nth".
func parse(value string) (p Point, nth int64, err error) {
	name, number, counted := strings.Cut(value, ":")
	p, nth = Point(name), 1
	if !slices.Contains(Bridge, p) && !slices.Contains(Worker, p) {
		return "", 0, fmt.Errorf("no such point; want one of %v and %v", Bridge, Worker)
	}
	if counted {
		if nth, err = strconv.ParseInt(number, 10, 64); err != nil || nth < 1 {
			return "", 0, fmt.Errorf("want a number over 0 behind the colon")
		}
	}
	return p, nth, nil
}

// At ends the process when p is armed and this is the time meant.
func At(p Point) {
	if p != armed || left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // to itself it cannot fail
	select {}                                      // nothing more happens before the signal comes
}
