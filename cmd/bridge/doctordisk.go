package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

const (
	syncs    = 20
	slowSync = 20 * time.Millisecond
	// Beyond it a job that Redis does not confirm is late for its answer.
	hangingSync = 250 * time.Millisecond
	// leastRoom is what a log and its snapshot have at rest, and some.
	leastRoom   = 256 << 20
	leastInodes = 1000
)

// fileSystems that are no place for jobs, or a doubtful one, by their magic number.
var fileSystems = map[uint32][2]string{
	0x01021994: {"tmpfs", "it is memory: all of it is gone after a restart of the machine"},
	0x858458f6: {"ramfs", "it is memory: all of it is gone after a restart of the machine"},
	0x794c7630: {"overlayfs", "it is a container's own layer: all of it is gone with the container"},
	0x6969:     {"NFS", "its locks and syncs depend on the server and on how it is mounted"},
}

func (d *doctor) lookAtDisk() {
	dir := d.cfg.dataDir
	if dir == "" {
		d.warn("disk.data_dir", "none", "jobs are held in memory only: they are gone when the process ends", "set data_dir, or redis.url")
		return
	}
	at, err := existing(dir)
	if err != nil {
		d.bad("disk.data_dir", err.Error(), "without it a bridge does not start", "make the directory for the user that runs the bridge, or set another data_dir")
		return
	}
	if !d.diskWrites(dir, at) {
		return
	}
	d.diskKind(at)
	d.diskRoom(at)
	if at == dir {
		d.diskJournal(dir)
	}
}

// existing returns dir, or the nearest directory above it that exists.
func existing(dir string) (string, error) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case err == nil && info.IsDir():
			if at == filepath.Clean(dir) {
				return dir, nil
			}
			return at, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", at)
		case !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at):
			return "", err
		}
	}
}

// diskWrites makes a file and syncs it, as the log does. It reports whether that is
// possible.
func (d *doctor) diskWrites(dir, at string) bool {
	path := filepath.Join(at, fmt.Sprintf(".doctor-%d", os.Getpid()))
	took, err := measureSyncs(path)
	if err != nil {
		d.bad("disk.data_dir", err.Error(), "a bridge cannot keep jobs there", "let the user that runs the bridge write there, make room, or set another data_dir")
		return false
	}
	if at == dir {
		d.ok("disk.data_dir", dir)
	} else {
		d.info("disk.data_dir", dir+" does not exist yet; "+at+" can be written to", "")
	}
	median, worst := medianAndWorst(took)
	seen := fmt.Sprintf("%s for 4 KiB (worst of %d: %s)", short(median), len(took), short(worst))
	if median >= slowSync || worst >= hangingSync {
		d.warn("disk.sync", seen, "in local mode each batch of jobs waits for it before it is acknowledged", "use a local SSD, or a volume with more operations per second")
	} else {
		d.ok("disk.sync", seen)
	}
	return true
}

func measureSyncs(path string) (took []time.Duration, err error) {
	f, err := wal.OS.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path)) }()
	block := make([]byte, 4096)
	for i := range syncs {
		began := time.Now()
		if _, err := f.WriteAt(block, int64(i)*int64(len(block))); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

func (d *doctor) diskKind(at string) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(at, &st); err != nil {
		d.info("disk.kind", "not known: "+err.Error(), "")
		return
	}
	if fs, ok := fileSystems[uint32(st.Type)]; ok {
		d.warn("disk.kind", fs[0], fs[1], "set data_dir to a directory on a disk of its own, or on a persistent volume")
	}
}

// diskRoom looks whether the log may reach its limits. A snapshot is written beside
// the log before that is cut.
func (d *doctor) diskRoom(at string) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(at, &st); err != nil {
		return // told already
	}
	free, most := int64(st.Bavail)*int64(st.Bsize), d.cfg.localMaxBytes //nolint:unconvert // other types on other systems
	seen := sizeOf(free) + " free"
	switch {
	case free < leastRoom:
		d.bad("disk.room", seen, "a full disk makes a bridge refuse jobs while Redis is away", "make room, or set another data_dir")
	case free/2 < most:
		d.warn("disk.room", fmt.Sprintf("%s, local.max_bytes is %s", seen, sizeOf(most)), "the log and a snapshot of it may need twice local.max_bytes", "make room, or lower local.max_bytes")
	default:
		d.ok("disk.room", seen)
	}
	if st.Files > 0 && st.Ffree < leastInodes {
		d.warn("disk.inodes", fmt.Sprintf("%d free", st.Ffree), "each segment of the log is a file", "remove small files there")
	}
}

// diskJournal looks for damage, unless a bridge uses the directory now.
func (d *doctor) diskJournal(dir string) {
	if pid, used := inUse(filepath.Join(dir, localDir, "lock")); used {
		d.info("disk.journal", "in use by a running bridge"+pid, fmt.Sprintf("'%s journal inspect --data-dir %s' looks at it once that has stopped", program, dir))
		return
	}
	for _, name := range []string{localDir, journalDir} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		r, err := memdelay.Inspect(path)
		switch {
		case err != nil:
			d.bad("disk."+name, err.Error(), "a bridge does not start with it", "let the user that runs the bridge read it")
		case r.Damaged():
			d.bad("disk."+name, "damaged", "a bridge does not start with it", fmt.Sprintf("'%s journal inspect --data-dir %s' says where, 'journal salvage' saves what can be read", program, dir))
		default:
			d.ok("disk."+name, fmt.Sprintf("%d pending, %d running, %d dead", r.Pending, r.Running, r.Dead))
		}
	}
}

// inUse reports whether a process holds the lock, and which.
func inUse(lock string) (pid string, used bool) {
	f, err := os.Open(lock)
	if err != nil {
		return "", false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // closing it does that, too
		return "", false
	}
	b := make([]byte, 16)
	if n, _ := f.ReadAt(b, 0); n > 1 {
		pid = " with pid " + string(b[:n-1])
	}
	return pid, true
}
