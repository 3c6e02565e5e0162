// Package crashfs is a file system in memory that loses power: a wal.FS for tests of
// what a store promises about the disk.
//
// It knows what has been synced, the content of files and the entries of directories
// apart. CrashAt stops it at an operation: that one and all later ones fail with
// ErrCrashed. Restart returns the file system that is found afterwards. Of what was
// not synced it drops all, keeps all, or keeps some: of each block what one of the
// writes left, a size without the data, an entry of a directory or not. Sometimes
// only the process died: then nothing is lost yet.
//
// Inject makes chosen operations fail, SetSpace makes the disk small. All choices
// come from the seed.
package crashfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// ErrCrashed is what every operation returns after the crash.
var ErrCrashed = errors.New("crashfs: crashed")

// Op is an operation that is about to run.
type Op struct {
	N    int    // counts those that change something or sync, from 1
	Kind string // create, write, truncate, sync, map, msync, rename, remove, syncdir; read and open are not counted
	Path string
}

// FS is the file system. Its methods may be called by several goroutines.
type FS struct {
	mu      sync.Mutex
	rng     *rand.Rand
	ops     int
	crashAt int
	crashed bool
	inject  func(Op) error
	space   int64 // zero: no limit
	block   int
	dirs    map[string]*dir
	locks   map[string]bool
}

type dir struct {
	now, synced map[string]*inode
	pending     []change
}

// change is what Create, Rename or Remove did to a directory.
type change struct {
	gone, name string // an entry that went, one that came; empty: none
	file       *inode
}

func (c change) apply(entries map[string]*inode) {
	if c.gone != "" {
		delete(entries, c.gone)
	}
	if c.name != "" {
		entries[c.name] = c.file
	}
}

// New returns an empty file system.
func New(seed uint64) *FS {
	rng := rand.New(rand.NewPCG(seed, 0))
	return &FS{rng: rng, block: 512 << (3 * rng.IntN(2)), dirs: map[string]*dir{}, locks: map[string]bool{}}
}

// Ops returns how many operations have been counted.
func (f *FS) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// CrashAt sets the operation at which the machine goes down, see Op.N; it may be
// carried out or not.
func (f *FS) CrashAt(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = n
}

// Crash takes the machine down now: all later operations fail.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Crashed reports whether the crash has happened.
func (f *FS) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Inject sets a function whose error an operation returns instead of running; a write
// may have been done in part, and what a sync should have made durable is lost unless
// it is written again. It must not use the file system. nil: none.
func (f *FS) Inject(fail func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inject = fail
}

// SetSpace sets how many bytes all files together may have; zero: no limit.
func (f *FS) SetSpace(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.space = bytes
}

// Restart crashes the file system, if that has not happened, and returns what is
// found afterwards, with no injections, and with the operations counted anew. It
// panics when a lock is held: what used the file system must have stopped, since it
// may write to its mappings without asking; Crash comes first, then its Close.
func (f *FS) Restart() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.locks {
		panic("crashfs: Restart while " + path + " is locked: call Crash, then close what holds it")
	}
	f.crashed = true
	g := New(f.rng.Uint64())
	g.block = f.block
	files := fates[f.rng.IntN(len(fates))]
	entries := fates[f.rng.IntN(len(fates))]
	killed := f.rng.IntN(4) == 0
	made := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(f.dirs)) {
		d := f.dirs[name]
		if killed {
			g.dirs[name] = d.kill(made)
		} else {
			g.dirs[name] = d.crash(f, files, entries, made)
		}
	}
	return g
}

// fate decides how many of n unsynced writes to one place last.
type fate func(rng *rand.Rand, n int) int

var fates = []fate{
	func(*rand.Rand, int) int { return 0 },
	func(_ *rand.Rand, n int) int { return n },
	func(rng *rand.Rand, n int) int { return rng.IntN(n + 1) },
	func(rng *rand.Rand, n int) int { return rng.IntN(n + 1) },
}

// kill copies the directory as it is: only the process has died.
func (d *dir) kill(made map[*inode]*inode) *dir {
	copied := func(i *inode) *inode {
		if i != nil && made[i] == nil {
			i.unmap()
			made[i] = i.clone()
		}
		return made[i]
	}
	n := &dir{now: map[string]*inode{}, synced: map[string]*inode{}}
	for name, i := range d.now {
		n.now[name] = copied(i)
	}
	for name, i := range d.synced {
		n.synced[name] = copied(i)
	}
	for _, c := range d.pending {
		n.pending = append(n.pending, change{c.gone, c.name, copied(c.file)})
	}
	return n
}

// crash is the directory as the disk has it.
func (d *dir) crash(f *FS, files, entries fate, made map[*inode]*inode) *dir {
	kept := maps.Clone(d.synced)
	for _, c := range d.pending {
		if entries(f.rng, 1) == 1 {
			c.apply(kept)
		}
	}
	n := &dir{now: map[string]*inode{}}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		i := kept[name]
		if made[i] == nil {
			made[i] = i.crash(f, files)
		}
		n.now[name] = made[i]
	}
	n.synced = maps.Clone(n.now)
	return n
}

// begin counts an operation; skip means that the error is its result. Its caller
// holds f.mu.
func (f *FS) begin(kind, path string) error {
	if f.crashed {
		return ErrCrashed
	}
	op := Op{Kind: kind, Path: path}
	if kind != "read" && kind != "open" {
		f.ops++
		op.N = f.ops
	}
	if op.N > 0 && op.N == f.crashAt {
		f.crashed = true
		if f.rng.IntN(2) == 0 {
			return ErrCrashed
		}
		return nil // it is carried out, and end says that nobody learns of it
	}
	if f.inject != nil {
		if err := f.inject(op); err != nil {
			return &fs.PathError{Op: kind, Path: path, Err: err}
		}
	}
	return nil
}

func (f *FS) end() error {
	if f.crashed {
		return ErrCrashed
	}
	return nil
}

// dir returns the directory of path.
func (f *FS) dir(op, path string) (*dir, string, error) {
	d := f.dirs[filepath.Dir(path)]
	if d == nil {
		return nil, "", &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
	}
	return d, filepath.Base(path), nil
}

func (d *dir) change(c change) {
	c.apply(d.now)
	d.pending = append(d.pending, c)
}

// Create implements wal.FS.
func (f *FS) Create(path string) (wal.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.create("create", path)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, inode: i, path: path}, f.end()
}

func (f *FS) create(op, path string) (*inode, error) {
	if err := f.begin(op, path); err != nil {
		return nil, err
	}
	d, name, err := f.dir(op, path)
	if err != nil {
		return nil, err
	}
	if d.now[name] != nil {
		return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrExist}
	}
	i := &inode{}
	d.change(change{name: name, file: i})
	return i, nil
}

// Open implements wal.FS.
func (f *FS) Open(path string) (wal.File, error) { return f.open(path) }

// OpenWrite implements wal.FS.
func (f *FS) OpenWrite(path string) (wal.File, error) { return f.open(path) }

func (f *FS) open(path string) (wal.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.find(path)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, inode: i, path: path}, nil
}

func (f *FS) find(path string) (*inode, error) {
	if err := f.begin("open", path); err != nil {
		return nil, err
	}
	d, name, err := f.dir("open", path)
	if err == nil && d.now[name] == nil {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	return d.now[name], nil
}

// Rename implements wal.FS, within a directory.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("rename", from); err != nil {
		return err
	}
	d, name, err := f.dir("rename", from)
	if err != nil {
		return err
	}
	if filepath.Dir(from) != filepath.Dir(to) || d.now[name] == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.change(change{gone: name, name: filepath.Base(to), file: d.now[name]})
	return f.end()
}

// Remove implements wal.FS.
func (f *FS) Remove(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("remove", path); err != nil {
		return err
	}
	d, name, err := f.dir("remove", path)
	if err != nil {
		return err
	}
	if d.now[name] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	d.change(change{gone: name})
	return f.end()
}

// ReadDir implements wal.FS.
func (f *FS) ReadDir(path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("read", path); err != nil {
		return nil, err
	}
	d := f.dirs[filepath.Clean(path)]
	if d == nil {
		return nil, &fs.PathError{Op: "readdir", Path: path, Err: fs.ErrNotExist}
	}
	return slices.Sorted(maps.Keys(d.now)), nil
}

// MkdirAll implements wal.FS.
func (f *FS) MkdirAll(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	if path = filepath.Clean(path); f.dirs[path] == nil {
		f.dirs[path] = &dir{now: map[string]*inode{}, synced: map[string]*inode{}}
	}
	return nil
}

// SyncDir implements wal.FS.
func (f *FS) SyncDir(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("syncdir", path); err != nil {
		return err
	}
	d := f.dirs[filepath.Clean(path)]
	if d == nil {
		return &fs.PathError{Op: "syncdir", Path: path, Err: fs.ErrNotExist}
	}
	d.synced, d.pending = maps.Clone(d.now), nil
	return f.end()
}

type unlock func() error

func (u unlock) Close() error { return u() }

// Lock implements wal.FS. A crash releases it.
func (f *FS) Lock(path string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("open", path); err != nil {
		return nil, err
	}
	if f.locks[path] {
		return nil, fmt.Errorf("lock %s: %w", path, wal.ErrLocked)
	}
	f.locks[path] = true
	return unlock(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.locks, path)
		return nil
	}), nil
}

// grow reports how many of the bytes that i lacks for size fit on the disk.
func (f *FS) grow(i *inode, size int64) (int64, error) {
	have := int64(len(i.now))
	if f.space == 0 || size <= have {
		return size, nil
	}
	free := f.space
	seen := map[*inode]bool{}
	for _, d := range f.dirs {
		for _, other := range d.now {
			if !seen[other] {
				seen[other] = true
				free -= int64(len(other.now))
			}
		}
	}
	if size-have <= free {
		return size, nil
	}
	return have + max(free, 0), syscall.ENOSPC
}
