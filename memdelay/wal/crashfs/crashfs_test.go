package crashfs

import (
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"
)

// found makes two files, one synced with its name, and says what of them is there
// after a crash with this seed.
func found(t *testing.T, seed uint64) (names []string, synced, unsynced string) {
	t.Helper()
	fs := New(seed)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(fs.MkdirAll("/d"))
	write := func(name, data string, off int64) {
		f, err := fs.OpenWrite(name)
		if err != nil {
			f, err = fs.Create(name)
		}
		check(err)
		_, err = f.WriteAt([]byte(data), off)
		check(err)
	}
	write("/d/a", "old", 0)
	f, err := fs.OpenWrite("/d/a")
	check(err)
	check(f.Sync())
	check(fs.SyncDir("/d"))
	write("/d/a", "new", 0)
	write("/d/b", "x", 0)
	fs = fs.Restart()
	names, err = fs.ReadDir("/d")
	check(err)
	read := func(name string) string {
		f, err := fs.Open(name)
		if err != nil {
			return "none"
		}
		b := make([]byte, 10)
		n, err := f.ReadAt(b, 0)
		if err != io.EOF {
			check(err)
		}
		return string(b[:n])
	}
	return names, read("/d/a"), read("/d/b")
}

func TestCrashKeepsWhatIsSynced(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		names, a, b := found(t, seed)
		seen["a="+a]++
		seen["b="+b]++
		if again, a2, b2 := found(t, seed); a2 != a || b2 != b || !slices.Equal(again, names) {
			t.Fatalf("seed %d has two outcomes", seed)
		}
	}
	for _, want := range []string{"a=old", "a=new", "b=none", "b=", "b=x"} {
		if seen[want] == 0 {
			t.Errorf("%s never happens", want)
		}
	}
	if n := seen["a=old"] + seen["a=new"]; n != 300 {
		t.Errorf("of 300 times what was synced is there %d times: %v", n, seen)
	}
}

func TestFailures(t *testing.T) {
	fs := New(1)
	if err := fs.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create("/d/a")
	if err != nil {
		t.Fatal(err)
	}
	fs.SetSpace(5000)
	if n, err := f.WriteAt(make([]byte, 10_000), 0); !errors.Is(err, syscall.ENOSPC) || n > 5000 {
		t.Errorf("%d bytes on a full disk: %v", n, err)
	}
	fs.Inject(func(op Op) error {
		if op.Kind == "sync" {
			return syscall.EIO
		}
		return nil
	})
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	fs.CrashAt(fs.Ops() + 1)
	if err := f.Truncate(0); !errors.Is(err, ErrCrashed) || !fs.Crashed() {
		t.Errorf("at the crash: %v", err)
	}
	if _, err := fs.Open("/d/a"); !errors.Is(err, ErrCrashed) {
		t.Errorf("after the crash: %v", err)
	}
}
