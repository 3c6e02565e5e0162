package integration

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// smallDisk is a file system that can be full.
type smallDisk struct {
	t       *testing.T
	dir     string
	limited bool // there is none: the size of the bridge's files is limited instead
}

const (
	diskSize   = 128 << 20
	fillerName = "filler"
)

// newSmallDisk mounts a small file system in memory, where that is permitted.
func newSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	d := &smallDisk{t: t, dir: t.TempDir()}
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, "size=128m"); err != nil {
		t.Logf("no file system can be mounted (%v): the size of files is limited instead", err)
		d.limited = true
		return d
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.dir, 0); err != nil {
			t.Errorf("unmount %s: %v", d.dir, err)
		}
	})
	return d
}

// fill leaves no room for the bridge.
func (d *smallDisk) fill(s *stand) {
	d.t.Helper()
	if d.limited {
		d.limit(s, 1)
		return
	}
	f, err := os.Create(filepath.Join(d.dir, fillerName))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); err == nil && len(block) > 0; {
		if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block, err = block[:len(block)/2], nil
		}
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// free makes room again.
func (d *smallDisk) free(s *stand) {
	d.t.Helper()
	if d.limited {
		d.limit(s, ^uint64(0))
		return
	}
	if err := os.Remove(filepath.Join(d.dir, fillerName)); err != nil {
		d.t.Fatal(err)
	}
}

// limit bounds the size of the files that the bridge may write from now on.
func (d *smallDisk) limit(s *stand, size uint64) {
	d.t.Helper()
	limits := [2]uint64{size, ^uint64(0)}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(s.bridge.cmd.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limits)), 0, 0, 0)
	if errno != 0 {
		d.t.Fatalf("limit the bridge's files: %v", errno)
	}
}

// Redis is away, and the disk is full: nothing is acknowledged that cannot be
// kept. With room, jobs are taken again, and nothing was lost.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := newSmallDisk(t)
	s := newStand(t, "--data-dir", disk.dir)
	l := faultLoad.run(s, 4)
	s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 500 })
	s.redis.Freeze()
	s.awaitLocal()
	_, healed := s.Fault("disk-full", false)
	disk.fill(s)
	before := s.Counts()
	s.awaitCounts("refused for want of room", func(c Counts) bool { return c.Refused > before.Refused+100 })
	time.Sleep(time.Second) // the length of the fault
	disk.free(s)
	healed()
	s.awaitLocal()
	s.redis.Thaw()
	s.awaitRedis()
	l.end(Explained, answerWithin)
	t.Logf("%+v; duplicates %v", s.Counts(), s.Duplicates())
}

// The disk is full while Redis is there: nobody but those who asked for a copy
// on it notices.
func TestDiskFullBesideRedis(t *testing.T) {
	t.Parallel()
	disk := newSmallDisk(t)
	s := newStand(t, "--data-dir", disk.dir)
	disk.fill(s)
	l := faultLoad.run(s, 4)
	s.awaitCounts("load", func(c Counts) bool { return c.Accepted > 1000 && c.Delivered > 300 })
	l.end(Explained, answerWithin)
	if c := s.Counts(); c.Refused > 0 || c.Local > 0 {
		t.Errorf("a full disk was noticed: %+v", c)
	}
}
