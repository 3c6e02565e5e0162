package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// segment is the file that is being written. Only the committer uses it.
type segment struct {
	file   File
	path   string
	number uint64
	salt   uint64
	tail   int64 // where the next batch goes; all before is synced
	room   int64 // the file has its blocks up to here: tail and a mark at least
	limit  int64 // where the next segment begins
	marked bool
}

const suffix = ".wal"

func segmentPath(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016d%s", number, suffix))
}

// segmentNumber is the number in the name of a segment.
func segmentNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0
}

var zeros [64 << 10]byte

func writeZeros(f File, from, to int64) error {
	for from < to {
		n, err := f.WriteAt(zeros[:min(to-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// createSegment makes a segment that is on disk, name included, when it returns. On
// an error there is none, unless it is an errUnknown.
func createSegment(fs FS, dir string, number uint64, before, limit int64) (*segment, error) {
	s := &segment{path: segmentPath(dir, number), number: number, salt: rand.Uint64(), tail: fileHeader, limit: limit}
	file, err := fs.Create(s.path)
	if err != nil {
		return nil, err
	}
	s.file = file
	if err := s.begin(fs, dir, before); err != nil {
		// The one before must not grow any more while this one, whose header says where
		// that ends, may be there.
		if undo := errors.Join(file.Close(), fs.Remove(s.path), fs.SyncDir(dir)); undo != nil {
			return nil, fmt.Errorf("%w: %w, %w", errUnknown, err, undo)
		}
		return nil, err
	}
	return s, nil
}

// errUnknown marks errors after which nobody knows what is on the disk.
var errUnknown = errors.New("what is on the disk is not known")

func (s *segment) begin(fs FS, dir string, before int64) error {
	s.room = s.roomFor(fileHeader)
	if err := writeZeros(s.file, 0, s.room); err != nil {
		return err
	}
	// After the zeros, so that a header is never there in part.
	head := fileHead{number: s.number, salt: s.salt, before: before}.append(nil)
	if _, err := s.file.WriteAt(head, 0); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	if err := fs.SyncDir(dir); err != nil {
		return fmt.Errorf("%w: sync directory %s: %w", errUnknown, dir, err)
	}
	return nil
}

func (s *segment) sync() error {
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("%w: sync %s: %w", errUnknown, s.path, err)
	}
	return nil
}

// roomFor is the size of the file when batches end at end: a mark fits behind them.
func (s *segment) roomFor(end int64) int64 {
	step := min(zeroStep, s.limit)
	return (end + batchHeader + step - 1) / step * step
}

// write puts b at the tail, without syncing it. Behind it are always written zeros:
// overwriting them needs no change of the file's metadata, which makes the next
// syncs cheap.
func (s *segment) write(b []byte) error {
	end := s.tail + int64(len(b))
	_, err := s.file.WriteAt(b, s.tail)
	if err == nil && end+batchHeader > s.room {
		room := s.roomFor(end)
		if err = writeZeros(s.file, max(end, s.room), room); err == nil {
			s.room = room
		}
	}
	s.marked = false
	if err != nil && diskFull(err) {
		return errors.Join(err, s.cut(end))
	}
	return err
}

// seal fills in the header of a batch that is about to be written.
func (s *segment) seal(b []byte, count uint32) {
	body := b[batchHeader:]
	batchHead{count: count, bytes: uint32(len(body)), sum: checksum(body), salt: s.salt, synced: s.tail}.put(b)
}

// cut takes back a write that ended at end or before. The room stays.
func (s *segment) cut(end int64) error {
	err := s.file.Truncate(s.room)
	if err == nil {
		err = writeZeros(s.file, s.tail, min(end, s.room))
	}
	if err != nil {
		return fmt.Errorf("%w: cut %s back to offset %d: %w", errUnknown, s.path, s.tail, err)
	}
	return nil
}

// mark writes a mark at the tail, if none is there. Nothing depends on it, so an
// error is of no interest.
func (s *segment) mark() {
	if !s.marked {
		s.marked = s.writeMark(0) == nil
	}
}

func (s *segment) writeMark(kind uint32) error {
	var b [batchHeader]byte
	batchHead{sum: kind, salt: s.salt, synced: s.tail}.put(b[:])
	_, err := s.file.WriteAt(b[:], s.tail)
	return err
}

// finish closes the file with a mark and gives the room behind that back. All batches
// are on disk already.
func (s *segment) finish(kind uint32) error {
	return errors.Join(s.writeMark(kind), s.file.Truncate(s.tail+batchHeader), s.file.Sync(), s.file.Close())
}

// diskFull: nothing is wrong but that there is no room.
func diskFull(err error) bool {
	return !errors.Is(err, errUnknown) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}
