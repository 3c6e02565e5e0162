package crashfs

import (
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// inode is the content of a file.
type inode struct {
	now     []byte // as readers see it
	synced  []byte // as the disk has it for certain
	pending []write
	mapped  []byte // what a mapping may have changed
}

// write is a write, or, without data, a truncation at off.
type write struct {
	off  int64
	data []byte
}

func (w write) apply(b []byte) []byte {
	if w.data == nil {
		return resize(b, w.off)
	}
	b = resize(b, max(int64(len(b)), w.off+int64(len(w.data))))
	copy(b[w.off:], w.data)
	return b
}

// touches reports whether the write changes bytes of the block at off.
func (w write) touches(off, size int64) bool {
	if w.data == nil {
		return w.off < off+size
	}
	return w.off < off+size && off < w.off+int64(len(w.data))
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size]
	}
	have := len(b)
	b = slices.Grow(b, int(size)-have)[:size]
	clear(b[have:])
	return b
}

func (i *inode) write(w write) {
	i.now = w.apply(i.now)
	i.pending = append(i.pending, w)
}

func (i *inode) sync() {
	for _, w := range i.pending {
		i.synced = w.apply(i.synced)
	}
	i.pending = nil
}

// unmap turns what a mapping changed into a write.
func (i *inode) unmap() {
	if i.mapped != nil {
		i.write(write{0, slices.Clone(i.mapped)})
		i.mapped = nil
	}
}

func (i *inode) clone() *inode {
	return &inode{now: slices.Clone(i.now), synced: slices.Clone(i.synced), pending: slices.Clone(i.pending)}
}

// crash is the file as the disk has it: of each block, and of the size, what some of
// the writes since the last sync left.
func (i *inode) crash(f *FS, keep fate) *inode {
	i.unmap()
	if len(i.pending) == 0 {
		return &inode{now: slices.Clone(i.synced), synced: slices.Clone(i.synced)}
	}
	size := int64(len(i.synced))
	for _, w := range i.pending[:keep(f.rng, len(i.pending))] {
		if end := w.off + int64(len(w.data)); w.data == nil || end > size {
			size = end
		}
	}
	out := make([]byte, size)
	for off := int64(0); off < size; off += int64(f.block) {
		i.crashBlock(out[off:min(size, off+int64(f.block))], off, f, keep)
	}
	return &inode{now: out, synced: slices.Clone(out)}
}

func (i *inode) crashBlock(block []byte, off int64, f *FS, keep fate) {
	if off < int64(len(i.synced)) {
		copy(block, i.synced[off:])
	}
	var touching []write
	for _, w := range i.pending {
		if w.touches(off, int64(len(block))) {
			touching = append(touching, w)
		}
	}
	for _, w := range touching[:keep(f.rng, len(touching))] {
		if w.data == nil {
			clear(block[max(w.off-off, 0):])
			continue
		}
		from, to := max(w.off, off), min(w.off+int64(len(w.data)), off+int64(len(block)))
		copy(block[from-off:to-off], w.data[from-w.off:])
	}
}

// file is an open file.
type file struct {
	fs    *FS
	inode *inode
	path  string
}

func (h *file) ReadAt(b []byte, off int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.fs.begin("read", h.path); err != nil {
		return 0, err
	}
	if off >= int64(len(h.inode.now)) {
		return 0, io.EOF
	}
	n := copy(b, h.inode.now[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *file) WriteAt(b []byte, off int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	err := h.fs.begin("write", h.path)
	if err == ErrCrashed {
		return 0, err
	}
	if err != nil {
		n := h.fs.whole(off, int64(h.fs.rng.IntN(len(b)+1)))
		h.put(b[:n], off)
		return int(n), err
	}
	end, err := h.fs.grow(h.inode, off+int64(len(b)))
	n := min(max(end-off, 0), int64(len(b)))
	if err != nil {
		n = h.fs.whole(off, n)
	}
	h.put(b[:n], off)
	if err != nil {
		return int(n), &fs.PathError{Op: "write", Path: h.path, Err: err}
	}
	return int(n), h.fs.end()
}

// whole returns how much of n bytes at off ends with a block: what is written in part
// is whole blocks.
func (f *FS) whole(off, n int64) int64 {
	size := int64(f.block)
	return max((off+n)/size*size-off, 0)
}

func (h *file) put(b []byte, off int64) {
	if len(b) > 0 {
		h.inode.write(write{off, slices.Clone(b)})
	}
}

func (h *file) Truncate(size int64) error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.fs.begin("truncate", h.path); err != nil {
		return err
	}
	h.inode.write(write{off: size})
	return h.fs.end()
}

func (h *file) Sync() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return h.fs.sync("sync", h.path, h.inode)
}

func (f *FS) sync(op, path string, i *inode) error {
	if err := f.begin(op, path); err != nil {
		if err != ErrCrashed { // the kernel forgets what it could not write
			i.pending = nil
		}
		return err
	}
	i.sync()
	return f.end()
}

func (h *file) Size() (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if err := h.fs.begin("read", h.path); err != nil {
		return 0, err
	}
	return int64(len(h.inode.now)), nil
}

func (h *file) Close() error { return nil }

// mapping is a file mapped into memory.
type mapping struct {
	fs    *FS
	inode *inode
	path  string
	b     []byte
	read  bool
}

// Map implements wal.FS.
func (f *FS) Map(path string, size int64) (wal.Mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.create("map", path)
	if err != nil {
		return nil, err
	}
	if _, err := f.grow(i, size); err != nil {
		f.dirs[filepath.Dir(path)].change(change{gone: filepath.Base(path)})
		return nil, &fs.PathError{Op: "allocate", Path: path, Err: err}
	}
	i.write(write{0, make([]byte, size)})
	i.mapped = make([]byte, size)
	return &mapping{fs: f, inode: i, path: path, b: i.mapped}, f.end()
}

// MapRead implements wal.FS. The bytes are a copy.
func (f *FS) MapRead(path string) (wal.Mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.find(path)
	if err != nil {
		return nil, err
	}
	return &mapping{fs: f, inode: i, path: path, b: slices.Clone(i.now), read: true}, nil
}

func (m *mapping) Bytes() []byte { return m.b }

func (m *mapping) Sync() error {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	if !m.read && !m.fs.crashed {
		m.inode.write(write{0, slices.Clone(m.b)})
	}
	return m.fs.sync("msync", m.path, m.inode)
}

func (m *mapping) Close() error {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	if !m.read && !m.fs.crashed {
		m.inode.unmap()
	}
	return nil
}
