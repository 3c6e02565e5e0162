package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// OS is the file system of the operating system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Create(path string) (File, error) {
	return openOS(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) Open(path string) (File, error) { return openOS(path, os.O_RDONLY) }

func (osFS) OpenWrite(path string) (File, error) { return openOS(path, os.O_RDWR) }

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (fs osFS) MkdirAll(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The whole path, as several of its directories may be new.
	for dir = filepath.Clean(dir); ; {
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil
		}
		if err := fs.SyncDir(parent); err != nil {
			if errors.Is(err, os.ErrPermission) { // then it is not one that was just made
				return nil
			}
			return err
		}
		dir = parent
	}
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w%s", ErrLocked, holder(f))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	// The pid is for the error above only: that it is missing does no harm.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// holder names the process that wrote its pid into the lock file.
func holder(f *os.File) string {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return " with pid " + pid
	}
	return ""
}

type osFile struct{ *os.File }

func openOS(path string, flag int) (File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error {
	return retryEINTR(func() error {
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	})
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

type osMapping []byte

func (osFS) Map(path string, size int64) (Mapping, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	m, err := mapNew(f, size)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return m, nil
}

// mapNew allocates the blocks first: a full disk would otherwise show as a SIGBUS.
func mapNew(f *os.File, size int64) (Mapping, error) {
	err := retryEINTR(func() error { return syscall.Fallocate(int(f.Fd()), 0, 0, size) })
	if errors.Is(err, syscall.EOPNOTSUPP) {
		err = writeZeros(osFile{f}, 0, size)
	}
	if err != nil {
		return nil, &os.PathError{Op: "allocate", Path: f.Name(), Err: err}
	}
	return mapFile(f, size, syscall.PROT_READ|syscall.PROT_WRITE)
}

func (osFS) MapRead(path string) (Mapping, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return mapFile(f, info.Size(), syscall.PROT_READ)
}

func mapFile(f *os.File, size int64, prot int) (Mapping, error) {
	if size == 0 { // which mmap refuses
		return osMapping(nil), nil
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(size), prot, syscall.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return osMapping(b), nil
}

func (m osMapping) Bytes() []byte { return m }

func (m osMapping) Sync() error {
	if len(m) == 0 {
		return nil
	}
	_, _, errno := syscall.Syscall(syscall.SYS_MSYNC, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), syscall.MS_SYNC)
	if errno != 0 {
		return os.NewSyscallError("msync", errno)
	}
	return nil
}

func (m osMapping) Close() error {
	if len(m) == 0 {
		return nil
	}
	return os.NewSyscallError("munmap", syscall.Munmap(m))
}
