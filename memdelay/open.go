package memdelay

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Open returns a Store that keeps what it holds in dir, with what was held there
// before. A call of it that changes something returns when the change is on
// disk; a call that finds it made before, too. Close it at the end.
//
// A directory that is damaged, or that another process uses, is an error.
func Open(dir string, o Options) (*Store, error) {
	s := New(o)
	s.stored = job.StoredLocal
	d := &disk{
		dir: dir, fs: s.options.FS, logger: s.options.Logger,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if err := s.recover(d); err != nil {
		d.cancel()
		return nil, fmt.Errorf("memory store in %s: %w", dir, err)
	}
	s.order()
	job.RaiseIncarnation(s.seen)
	d.grown = d.log.Size()
	s.disk = d
	go s.run()
	return s, nil
}

// recover reads what d holds and opens the log.
func (s *Store) recover(d *disk) error {
	if err := d.fs.MkdirAll(d.dir); err != nil {
		return err
	}
	from, damage, err := s.loadNewest(d)
	if err != nil {
		return err
	}
	d.log, err = wal.Open(d.dir, wal.Options{
		SegmentBytes: s.options.SegmentBytes, FS: d.fs, Logger: d.logger, OnSync: s.options.OnSync,
	}, from, s.apply)
	if err != nil {
		return errors.Join(err, damage)
	}
	if damage != nil {
		d.logger.Error("a snapshot cannot be read; all was recovered from the one before and the log", "dir", d.dir, "error", damage)
	}
	d.removeTemporary()
	return nil
}

// loadNewest loads the newest snapshot that can be read and returns the segment
// of the log that goes with it, and what is wrong with newer ones.
func (s *Store) loadNewest(d *disk) (from uint64, damage, err error) {
	list, err := listSnapshots(d.fs, d.dir)
	if err != nil {
		return 0, nil, err
	}
	for i, segment := range list {
		size, err := s.loadSnapshot(d, segment)
		if err == nil {
			d.newest = segment
			d.newestBytes.Store(size)
			d.formerBytes.Store(d.measure(list[i+1:]))
			return segment, damage, nil
		}
		damage = errors.Join(damage, err)
		s.clear()
	}
	return 1, damage, nil
}

func (s *Store) loadSnapshot(d *disk, segment uint64) (int64, error) {
	path := snapshotPath(d.dir, segment)
	m, err := d.fs.MapRead(path)
	if err != nil {
		return 0, err
	}
	size := int64(len(m.Bytes()))
	body, err := checkSnapshot(m.Bytes(), segment)
	if err == nil {
		err = s.load(bytes.NewReader(body))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return size, errors.Join(err, m.Close())
}

// measure returns the bytes of snapshots; of those that cannot be read, none.
func (d *disk) measure(segments []uint64) (total int64) {
	for _, segment := range segments {
		if f, err := d.fs.Open(snapshotPath(d.dir, segment)); err == nil {
			if size, err := f.Size(); err == nil {
				total += size
			}
			_ = f.Close()
		}
	}
	return total
}
