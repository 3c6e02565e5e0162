package main

import (
	"os"
	"syscall"
	"unsafe"
)

// isTerminal reports whether f is one.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// terminalRows returns how many lines the terminal f has; zero: it does not say.
func terminalRows(f any) int {
	file, ok := f.(*os.File)
	if !ok {
		return 0
	}
	var size struct{ rows, cols, width, height uint16 }
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0
	}
	return int(size.rows)
}
