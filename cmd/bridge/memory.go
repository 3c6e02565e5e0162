package main

import (
	"bytes"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// gcPercent trades memory for speed: the garbage is short-lived batches,
	// so collecting rarely costs little memory and saves much time.
	gcPercent = 400
	// fallbackMemory is taken for the machine's where it cannot be read.
	fallbackMemory = 4 << 30
)

// tuneMemory sets the garbage collector's pace, unless GOGC or GOMEMLIMIT do.
// With so high a percentage a large heap (a million local jobs) would take
// five times its size before it is collected, so a limit makes the collector
// work harder in time: three quarters of what the container may use, where a
// kill comes next, or half of the machine, which others use too. It is no
// allocation; a bridge on Redis stays far below it.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(os.ReadFile))
	}
}

func memoryLimit(read func(string) ([]byte, error)) int64 {
	machine := machineMemory(read)
	if c := containerMemory(read); c < machine {
		return c / 4 * 3
	}
	return machine / 2
}

// machineMemory reads the size of the machine's memory where Linux tells it.
func machineMemory(read func(string) ([]byte, error)) int64 {
	data, _ := read("/proc/meminfo")
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == "MemTotal:" {
			if kb, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return kb << 10
			}
		}
	}
	return fallbackMemory
}

// containerMemory reads the limit of the control group, MaxInt64 if there is
// none.
func containerMemory(read func(string) ([]byte, error)) int64 {
	group := "/"
	data, _ := read("/proc/self/cgroup")
	for line := range bytes.Lines(data) {
		if g, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::"); ok {
			group = g
		}
	}
	for _, file := range []string{path.Join("/sys/fs/cgroup", group, "memory.max"), "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		data, err := read(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return math.MaxInt64
}
