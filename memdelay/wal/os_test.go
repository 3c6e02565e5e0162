package wal_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// childDir makes the test program open the log in a directory, append to it for ever,
// and print a line for every record that is durable, or the error of opening it.
const childDir = "WAL_TEST_CHILD"

func child(dir string) {
	l, ids, err := tryOpen(dir, wal.Options{SegmentBytes: 64 << 10}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := len(ids); err == nil; i++ {
		if err = l.Wait(background, l.Append(rec(i))); err == nil {
			_, err = fmt.Println(i)
		}
	}
	fmt.Println(err)
}

func startChild(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, wal.Options{}, 0)
	defer closeLog(t, l)
	cmd, out := startChild(t, dir)
	out.Scan()
	if got, want := out.Text(), fmt.Sprintf("%s/lock: in use by another process with pid %d", dir, os.Getpid()); !strings.Contains(got, want) {
		t.Errorf("the second process said %q, want %q", got, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryOpen(dir, wal.Options{}, 0); !errors.Is(err, wal.ErrLocked) {
		t.Errorf("a second time in this process: %v", err)
	}
}

func TestKilledProcess(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		cmd, out := startChild(t, dir)
		var last int
		for i := 0; i < 100 && out.Scan(); i++ {
			if _, err := fmt.Sscan(out.Text(), &last); err != nil {
				t.Fatal(out.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for out.Scan() {
			_, _ = fmt.Sscan(out.Text(), &last) // the last line may be cut short
		}
		_ = cmd.Wait() // it was killed
		l, ids := open(t, dir, wal.Options{}, 0)
		if len(ids) < last+1 || len(ids) < 100*(round+1) {
			t.Fatalf("%d records, record %d was acknowledged", len(ids), last)
		}
		wantIDs(t, ids, 0, len(ids))
		closeLog(t, l)
	}
}

// asNobody runs f without root's right to ignore permissions.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0); errno != 0 {
			t.Error(errno)
		}
		f()
	}()
	<-done
}

func TestReadOnlyDirectory(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(filepath.Dir(base), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "log")
	l, _ := open(t, dir, wal.Options{}, 0)
	put(t, l, 0, 3)
	closeLog(t, l)
	check := func(what, path string) {
		t.Helper()
		_, _, err := tryOpen(dir, wal.Options{}, 0)
		if !errors.Is(err, os.ErrPermission) || errors.Is(err, wal.ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "writ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	mode := func(path string, m os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, m); err != nil {
			t.Fatal(err)
		}
	}
	mode(dir, 0o555)
	asNobody(t, func() { check("directory and lock", filepath.Join(dir, "lock")) })
	mode(filepath.Join(dir, "lock"), 0o666)
	mode(filepath.Join(dir, segmentName(1)), 0o444)
	asNobody(t, func() { check("segment", segmentName(1)) })
	mode(filepath.Join(dir, segmentName(1)), 0o666)
	asNobody(t, func() { check("directory", segmentName(2)) })
	mode(dir, 0o755)
	l, ids := open(t, dir, wal.Options{}, 0)
	wantIDs(t, ids, 0, 3)
	closeLog(t, l)
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, _ := open(t, dir, wal.Options{}, 0)
	defer closeLog(t, l)
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, segmentName(1)): 0o600, filepath.Join(dir, "lock"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

// TestDiskFull runs on a file system in memory and, where it may mount one, on a real
// one that is small.
func TestDiskFull(t *testing.T) {
	t.Run("simulated", func(t *testing.T) {
		fs := crashfs.New(1)
		testDiskFull(t, fs, dir, func() { fs.SetSpace(1) }, func() { fs.SetSpace(0) })
	})
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("no real disk to fill: mount: %v", err)
		return
	}
	defer func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	}()
	t.Run("tmpfs", func(t *testing.T) {
		filler := filepath.Join(small, "filler")
		fill := func() {
			if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("the disk is not full: %v", err)
			}
		}
		testDiskFull(t, wal.OS, filepath.Join(small, "log"), fill, func() {
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func testDiskFull(t *testing.T, fs wal.FS, dir string, fill, free func()) {
	synced := make(chan struct{}, 1)
	o := wal.Options{FS: fs, SegmentBytes: 16 << 10, OnSync: func(time.Duration, int, int) {
		select {
		case synced <- struct{}{}:
		default:
		}
	}}
	l, _ := open(t, dir, o, 0)
	put(t, l, 0, 200) // more than one segment
	fill()
	n := untilFull(t, l, 200)
	durable := n
	for ; n < durable+50; n++ { // at once, though the log tries every 250 ms only
		if err := l.Wait(t.Context(), l.Append(rec(n))); !errors.Is(err, wal.ErrDiskFull) {
			t.Fatalf("record %d on a full disk: %v", n, err)
		}
	}
	if _, err := l.Rotate(); !errors.Is(err, wal.ErrDiskFull) {
		t.Errorf("Rotate: %v", err)
	}
	select {
	case <-synced: // of before
	default:
	}
	free()
	<-synced
	if _, err := l.Rotate(); err != nil { // waits for the commit
		t.Fatal(err)
	}
	if err := errors.Join(l.Err(), l.Wait(t.Context(), l.Tail())); err != nil {
		t.Fatal(err)
	}
	put(t, l, n, n+5)
	n += 5
	fill()
	full := untilFull(t, l, n)
	if err := l.Close(); !errors.Is(err, wal.ErrDiskFull) {
		t.Errorf("Close: %v", err)
	}
	l, ids := open(t, dir, o, 0)
	wantIDs(t, ids, 0, full-1)
	if err := l.Wait(t.Context(), l.Append(rec(full-1))); !errors.Is(err, wal.ErrDiskFull) {
		t.Errorf("opened on a full disk: %v", err)
	}
	free()
	if _, err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	put(t, l, full, full+20)
	closeLog(t, l)
	l, ids = open(t, dir, o, 0)
	wantIDs(t, ids, 0, full+20)
	closeLog(t, l)
}

func TestNewLogOnAFullDisk(t *testing.T) {
	fs := crashfs.New(1)
	fs.SetSpace(1)
	l, _ := open(t, dir, wal.Options{FS: fs}, 0)
	if err := l.Err(); !errors.Is(err, wal.ErrDiskFull) {
		t.Errorf("Err: %v", err)
	}
	if err := l.Wait(t.Context(), l.Append(rec(0))); !errors.Is(err, wal.ErrDiskFull) {
		t.Errorf("Wait: %v", err)
	}
	fs.SetSpace(0)
	if _, err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	put(t, l, 1, 5)
	closeLog(t, l)
	l, ids := open(t, dir, wal.Options{FS: fs}, 0)
	wantIDs(t, ids, 0, 5)
	closeLog(t, l)
}

// untilFull appends records from n on until one does not fit, and returns the next.
func untilFull(t *testing.T, l *wal.Log, n int) int {
	t.Helper()
	for end := n + 3000; n < end; {
		err := l.Wait(t.Context(), l.Append(rec(n)))
		n++
		if errors.Is(err, wal.ErrDiskFull) && errors.Is(l.Err(), wal.ErrDiskFull) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the disk never fills")
	return 0
}

func TestMap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "map")
	m, err := wal.OS.Map(path, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	copy(m.Bytes()[9_990:], "0123456789")
	if err := m.Sync(); err != nil {
		t.Fatal(err)
	}
	closeLog(t, m)
	if _, err := wal.OS.Map(path, 10); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	m, err = wal.OS.MapRead(path)
	if err != nil || len(m.Bytes()) != 10_000 || string(m.Bytes()[9_990:]) != "0123456789" {
		t.Fatalf("%v", err)
	}
	closeLog(t, m)
	if _, err := wal.OS.MapRead(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
