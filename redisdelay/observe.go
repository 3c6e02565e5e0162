package redisdelay

import (
	"slices"
	"time"
)

// Calls that are not one of a script.
const (
	callProbe  = "probe"
	callOwners = "owners"
	callCount  = "count"
)

// CallNames are the names that OnCall is called with: those of the scripts, and of
// what is done without one.
func CallNames() []string {
	names := []string{callProbe, callOwners, callCount}
	for _, sc := range allScripts {
		names = append(names, sc.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// observeCall tells of an attempt of a call.
func (s *Store) observeCall(name string, took time.Duration, err error) {
	if s.opts.OnCall != nil {
		s.opts.OnCall(name, took, err)
	}
}
