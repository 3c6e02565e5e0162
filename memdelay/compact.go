package memdelay

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/delaybridge/delaybridge/memdelay/wal"
)

const (
	// jobOverhead and noteBytes are about what snapshots and the log take for a
	// job beside its blob, and for a note.
	jobOverhead = 40
	noteBytes   = 120
	// idleBytes is what a store may take on disk beyond what it needs before
	// it is compacted though nothing happens.
	idleBytes = 32 << 20
	// idleEvery is how often that is looked at.
	idleEvery = time.Second
)

// liveBytes is about what a snapshot would take.
func (s *Store) liveBytes() int64 {
	return s.allBytes + jobOverhead*int64(s.entries.count) + s.notesBytes()
}

func (s *Store) notesBytes() int64 {
	return noteBytes * int64(s.chosen.len()+s.generated.len()+s.verdicts.len())
}

// outgrown reports whether the log has grown so much that a snapshot is due: by
// a quarter of the jobs' size, so that two snapshots and the log from the former
// on stay within three times of it. Notes have to be written again with every
// snapshot and are soon of no use, so they count in full.
func (s *Store) outgrown() bool {
	jobs := s.allBytes + jobOverhead*int64(s.entries.count)
	return s.disk.grown > max(s.options.SnapshotBytes, jobs/4+s.notesBytes())
}

// checkIdle wakes the compaction of a store that has become much smaller than
// what it takes on disk. It is called whenever time has passed.
func (s *Store) checkIdle() {
	if d := s.disk; s.now >= d.looked.Add(idleEvery) {
		d.looked = s.now
		if s.bloated() {
			d.signal()
		}
	}
}

// bloated reports whether another snapshot would free much.
func (s *Store) bloated() bool {
	return s.disk.size()-s.disk.newestBytes.Load() > max(idleBytes, 3*s.liveBytes())
}

func (d *disk) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run compacts whenever it is woken, until the store is closed.
func (s *Store) run() {
	d := s.disk
	defer close(d.stopped)
	for {
		select {
		case <-d.stop:
			return
		case <-d.wake:
		}
		// A second time, where the first snapshot became the former one.
		for range 2 {
			if err := s.compact(); err != nil {
				if !errors.Is(err, errClosed) {
					d.logger.Error("no snapshot: the log goes on growing", "dir", d.dir, "error", err)
				}
				break
			}
			s.mu.Lock()
			again := s.bloated()
			s.mu.Unlock()
			if !again {
				break
			}
		}
	}
}

// compact writes a snapshot and removes what it makes superfluous, but for the
// snapshot before and the log from there on.
func (s *Store) compact() error {
	d := s.disk
	s.mu.Lock()
	d.grown = 0
	s.mu.Unlock()
	if err := d.dropFormer(); err != nil {
		return err
	}
	switch err := d.log.Err(); {
	case errors.Is(err, wal.ErrDiskFull):
		return nil // a snapshot would take more
	case err != nil:
		return fmt.Errorf("the log: %w", err)
	}
	segment, err := d.log.Rotate()
	if err != nil {
		return err
	}
	s.mu.Lock()
	size := s.liveBytes()*5/4 + 8<<10
	s.mu.Unlock()
	for {
		n, err := s.writeTemporary(segment, size)
		if err == nil {
			return s.publish(segment, int64(n))
		}
		d.removeTemporary()
		if !errors.Is(err, errTooSmall) {
			return err
		}
		size *= 2
	}
}

func (d *disk) temporary() string { return filepath.Join(d.dir, "snapshot.tmp") }

// removeTemporary removes a snapshot that was not finished. Where that fails the
// next one fails and says so.
func (d *disk) removeTemporary() { _ = d.fs.Remove(d.temporary()) }

// writeTemporary writes a snapshot into a file of at most size bytes, and
// returns how many it has. It is on disk then.
func (s *Store) writeTemporary(segment uint64, size int64) (n int, err error) {
	d := s.disk
	d.removeTemporary() // of an attempt that failed
	m, err := d.fs.Map(d.temporary(), size)
	if err != nil {
		return 0, fmt.Errorf("snapshot of %d bytes: %w", size, err)
	}
	if n, err = s.writeSnapshot(m.Bytes(), segment, d.stop); err == nil {
		err = m.Sync()
	}
	if err = errors.Join(err, m.Close()); err != nil {
		return 0, err
	}
	f, err := d.fs.OpenWrite(d.temporary())
	if err != nil {
		return 0, err
	}
	return n, errors.Join(f.Truncate(int64(n)), f.Sync(), f.Close())
}

// publish makes the temporary file the snapshot of segment. What it holds must be
// in the log before: a crash must not leave effects of calls whose records
// were lost.
func (s *Store) publish(segment uint64, size int64) error {
	d := s.disk
	if err := d.log.Wait(d.ctx, d.log.Tail()); err != nil {
		d.removeTemporary()
		return err
	}
	if err := d.fs.Rename(d.temporary(), snapshotPath(d.dir, segment)); err != nil {
		return err
	}
	if err := d.fs.SyncDir(d.dir); err != nil {
		return err
	}
	d.formerBytes.Store(d.newestBytes.Load())
	d.newestBytes.Store(size)
	d.newest = segment
	return nil
}

// dropFormer removes all but the newest snapshot and its log, provided that it
// can be read.
func (d *disk) dropFormer() error {
	if d.newest == 0 {
		return nil
	}
	if err := d.verify(d.newest); err != nil {
		d.logger.Error("the newest snapshot cannot be read, the former one is kept", "error", err)
		return nil
	}
	list, err := listSnapshots(d.fs, d.dir)
	if err != nil {
		return err
	}
	for _, segment := range list {
		if segment == d.newest {
			continue
		}
		if err := d.fs.Remove(snapshotPath(d.dir, segment)); err != nil {
			return err
		}
	}
	// First these, for the log without them is all right.
	if err := d.fs.SyncDir(d.dir); err != nil {
		return err
	}
	d.formerBytes.Store(0)
	return d.log.RemoveBefore(d.newest)
}

// verify reads a snapshot.
func (d *disk) verify(segment uint64) error {
	path := snapshotPath(d.dir, segment)
	m, err := d.fs.MapRead(path)
	if err != nil {
		return err
	}
	if _, err = checkSnapshot(m.Bytes(), segment); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(err, m.Close())
}
