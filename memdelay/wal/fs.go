package wal

import "io"

// FS is the part of a file system that the log and memdelay's snapshots use. Paths
// are those of the operating system. What Create, Map, Rename and Remove did to a
// directory survives a crash once SyncDir of it has returned; what was written to a
// file survives once its Sync has. It may be used by several goroutines.
type FS interface {
	// Create makes a new file, readable by its owner only, and opens it for reading
	// and writing. A file that exists is an error.
	Create(path string) (File, error)
	// Open opens a file for reading.
	Open(path string) (File, error)
	// OpenWrite opens a file that exists for reading and writing.
	OpenWrite(path string) (File, error)
	// Map makes a new file of size bytes, with its blocks allocated, and maps it into
	// memory for writing. A file that exists is an error.
	Map(path string, size int64) (Mapping, error)
	// MapRead maps a file that exists into memory for reading.
	MapRead(path string) (Mapping, error)
	Rename(from, to string) error
	Remove(path string) error
	// ReadDir returns the names in a directory, sorted.
	ReadDir(dir string) ([]string, error)
	// MkdirAll makes a directory, and those above it, and makes that durable.
	MkdirAll(dir string) error
	SyncDir(dir string) error
	// Lock takes the file path, made if need be, for this process until the result is
	// closed. Held already, it fails with an error that is ErrLocked.
	Lock(path string) (io.Closer, error)
}

// File is an open file. One goroutine uses it at a time.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size returns the size that a reader sees.
	Size() (int64, error)
	// Sync makes what was written durable (fdatasync). After an error what was
	// written may be lost, whatever a later Sync returns.
	Sync() error
	Truncate(size int64) error
}

// Mapping is a file mapped into memory. Bytes is valid until Close.
type Mapping interface {
	Bytes() []byte
	// Sync makes the bytes durable (msync).
	Sync() error
	Close() error
}
