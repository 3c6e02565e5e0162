package wal

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Open locks dir, which it makes if need be, calls replay with every record from
// segment from on (zero: the first), and is ready to append. The record is valid
// during the call only, except for its ID. A segment from that Rotate returned, or
// that is zero in a new directory, is always there; RemoveBefore must not have been
// called with a later one.
//
// What a crash cut off the end is dropped. Everything else that cannot be read is an
// ErrDamaged, and dir stays as it is. A full disk is not an error: Err says so.
func Open(dir string, o Options, from uint64, replay func(*Record) error) (*Log, error) {
	o.setDefaults()
	if err := o.FS.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("wal: make directory %s: %w", dir, err)
	}
	lock, err := o.FS.Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("wal: the log needs a directory that it can write to and has for itself: %w", err)
	}
	l := &Log{
		dir: dir, o: o, lock: lock, next: newCommit(), sizes: map[uint64]int64{},
		kick: make(chan struct{}, 1), calls: make(chan func()), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := l.load(max(from, 1), replay); err != nil {
		if l.seg != nil {
			err = errors.Join(err, l.seg.file.Close())
		}
		return nil, errors.Join(err, lock.Close())
	}
	go l.run()
	return l, nil
}

// load replays the log and begins a new segment.
func (l *Log) load(from uint64, replay func(*Record) error) error {
	numbers, err := l.segments(from)
	if err == nil {
		err = l.replay(numbers, replay)
	}
	if err != nil {
		if errors.Is(err, ErrDamaged) {
			err = l.refuse(err)
		}
		return err
	}
	_, err = l.rotate()
	if !diskFull(err) {
		return l.writable(err)
	}
	if l.seg == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed(err)
	} else {
		l.o.Logger.Warn("log: no new segment, the last one grows on", "segment", l.seg.path, "error", err)
	}
	return nil
}

func (l *Log) writable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("wal: the directory %s must be writable: %w", l.dir, err)
}

// replay replays the segments and makes the last one the present one.
func (l *Log) replay(numbers []uint64, f func(*Record) error) error {
	torn, err := l.torn(numbers)
	if err != nil {
		return err
	}
	if torn {
		numbers = numbers[:len(numbers)-1]
	}
	for i, n := range numbers {
		if err := l.replaySegment(n, i > 0, i == len(numbers)-1, f); err != nil {
			return err
		}
	}
	if torn {
		err = errors.Join(l.o.FS.Remove(segmentPath(l.dir, l.last)), l.o.FS.SyncDir(l.dir))
		delete(l.sizes, l.last)
		l.last--
	}
	return l.writable(err)
}

// torn reports whether the last segment was being made when the machine went down.
// The first one asked for was complete when its number became known, unless it is the
// first of all.
func (l *Log) torn(numbers []uint64) (bool, error) {
	if len(numbers) == 0 || len(numbers) == 1 && numbers[0] > 1 {
		return false, nil
	}
	number := numbers[len(numbers)-1]
	r, err := openSegment(l.o.FS, segmentPath(l.dir, number), number)
	if err == nil {
		return false, r.file.Close()
	}
	return errors.Is(err, errTorn), nil // replaying it says what else is wrong
}

// segments returns the numbers of the segments from the given one on, without gaps.
func (l *Log) segments(from uint64) ([]uint64, error) {
	all, err := listSegments(l.o.FS, l.dir)
	if err != nil {
		return nil, err
	}
	var list []uint64
	for _, s := range all {
		l.sizes[s.number] = s.size
		l.last = s.number
		if s.number >= from {
			list = append(list, s.number)
		}
	}
	if len(list) == 0 && from == 1 && len(all) == 0 {
		return nil, nil
	}
	for i := range max(len(list), 1) {
		if want := from + uint64(i); i >= len(list) || list[i] != want {
			return nil, missing(l.dir, want)
		}
	}
	return list, nil
}

// refuse says how to go on with a log that is damaged.
func (l *Log) refuse(err error) error {
	return fmt.Errorf("wal: %w; see what can be read with `delaybridge journal inspect --data-dir %s`, "+
		"and get that into a new directory with `delaybridge journal salvage --data-dir %s`", err, l.dir, l.dir)
}

func missing(dir string, number uint64) error {
	return &Damage{Path: segmentPath(dir, number), Why: "the segment is missing"}
}

// replaySegment replays a segment. One that is not the first must follow on the one
// before; the last may have been cut short by a crash.
func (l *Log) replaySegment(number uint64, follows, last bool, replay func(*Record) error) error {
	r, err := openSegment(l.o.FS, segmentPath(l.dir, number), number)
	if err != nil {
		return err
	}
	if follows && r.head.before != l.end {
		err = l.badEnd(number-1, r.head.before)
	} else {
		err = r.replay(replay)
	}
	if err == nil {
		l.end = r.off
		if last {
			err = l.endLast(r)
		}
	}
	return errors.Join(err, r.file.Close())
}

// badEnd: the segment ends at l.end, and the next one says that it should end elsewhere.
func (l *Log) badEnd(number uint64, should int64) error {
	return &Damage{
		Path: segmentPath(l.dir, number), Offset: l.end,
		Why: fmt.Sprintf("the log goes on in the next segment from offset %d of this one", should),
	}
}

// replay calls f with every record up to where the segment ends.
func (r *reader) replay(f func(*Record) error) error {
	for {
		count, body, err := r.next()
		if errors.As(err, &r.why) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := eachRecord(body, count, f); err != nil {
			if own := (*replayError)(nil); errors.As(err, &own) {
				return fmt.Errorf("wal: replay of %s, before offset %d: %w", r.path, r.off, own.err)
			}
			return r.damage(r.off-batchHeader-int64(len(body)), err.Error())
		}
	}
}

// endLast cuts the last segment off behind its last batch, unless something shows
// that more of it was synced, and makes it the present one.
func (l *Log) endLast(r *reader) error {
	if r.goesOn {
		return missing(l.dir, r.head.number+1)
	}
	known := r.synced
	synced, err := r.proof(l.end)
	if err != nil {
		return err
	}
	if synced > l.end {
		return r.damage(l.end, fmt.Sprintf("%s, but the segment was synced up to offset %d", r.why, synced))
	}
	file, err := l.o.FS.OpenWrite(r.path)
	if err != nil {
		return l.writable(err)
	}
	l.seg = &segment{
		file: file, path: r.path, number: r.head.number, salt: r.head.salt,
		tail: l.end, room: l.end, limit: l.o.SegmentBytes,
	}
	l.sizes[r.head.number] = l.end
	// Its name, too, may be in memory only, if the process died while making it.
	return l.writable(errors.Join(l.seg.rewrite(known), l.o.FS.SyncDir(l.dir)))
}

// rewrite writes what is not known to be synced again and syncs it: it may be in
// memory only, and marked there as written by a sync that failed.
func (s *segment) rewrite(from int64) error {
	b := make([]byte, min(s.tail-from, 1<<20))
	for from < s.tail {
		n := min(s.tail-from, int64(len(b)))
		if _, err := s.file.ReadAt(b[:n], from); err != nil {
			return err
		}
		if _, err := s.file.WriteAt(b[:n], from); err != nil {
			return err
		}
		from += n
	}
	if err := s.file.Truncate(s.tail); err != nil {
		return err
	}
	return s.sync()
}
