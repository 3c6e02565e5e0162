//go:build !linux

package adapter

import "time"

// nap sleeps for d.
func nap(d time.Duration) { time.Sleep(d) }

// sharpen does nothing here.
func sharpen() {}
