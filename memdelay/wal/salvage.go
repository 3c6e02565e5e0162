package wal

import (
	"errors"
	"fmt"
	"os"
)

// Salvage copies all records of the log in dir that can be read to a new log in the
// directory to, which must be empty or not exist. It never writes to dir. Segments
// keep their numbers; one that is missing becomes an empty one.
func Salvage(dir, to string, fs FS) (Report, error) {
	if fs == nil {
		fs = OS
	}
	names, err := fs.ReadDir(to)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Report{}, fmt.Errorf("wal: salvage: %w", err)
	}
	if len(names) > 0 {
		return Report{}, fmt.Errorf("wal: salvage: the directory %s is not empty; name one that does not exist", to)
	}
	if err := fs.MkdirAll(to); err != nil {
		return Report{}, fmt.Errorf("wal: salvage: make directory %s: %w", to, err)
	}
	report, err := salvage(dir, to, fs)
	if err != nil {
		return report, fmt.Errorf("wal: salvage %s to %s: %w", dir, to, err)
	}
	return report, nil
}

func salvage(dir, to string, fs FS) (Report, error) {
	list, err := listSegments(fs, dir)
	if err != nil || len(list) == 0 {
		return Report{Dir: dir}, err
	}
	c := copier{fs: fs, to: to}
	if err := c.goTo(list[0].number); err != nil {
		return Report{Dir: dir}, err
	}
	report, err := walk(dir, fs, c.add)
	if err == nil {
		err = c.goTo(list[len(list)-1].number)
	}
	return report, errors.Join(err, c.close())
}

// copier writes records to segments of given numbers.
type copier struct {
	fs  FS
	to  string
	seg *segment
	q   queue
}

func (c *copier) add(number uint64, r *Record) error {
	if err := c.goTo(number); err != nil {
		return err
	}
	c.q.add([]Record{*r}, 0)
	if len(c.q.buf) < batchBytes {
		return nil
	}
	return c.flush()
}

// salvageStep is how far ahead zeros are written: not far, as it is given back soon.
const salvageStep = 64 << 10

// maxGap bounds the empty segments that stand in for missing ones: beyond it a file
// has a strange name.
const maxGap = 10_000

// goTo makes the segment number the present one, and those before it that are missing.
func (c *copier) goTo(number uint64) error {
	if c.seg != nil && number > c.seg.number+maxGap {
		return fmt.Errorf("segments %d to %d are missing", c.seg.number+1, number-1)
	}
	for c.seg == nil || c.seg.number < number {
		next, before := number, int64(0)
		if c.seg != nil {
			if err := c.close(); err != nil {
				return err
			}
			next, before = c.seg.number+1, c.seg.tail
		}
		seg, err := createSegment(c.fs, c.to, next, before, salvageStep)
		if err != nil {
			return err
		}
		c.seg = seg
	}
	return nil
}

func (c *copier) flush() error {
	size := 0
	for _, b := range c.q.batches {
		c.seg.seal(c.q.buf[size:size+b.size], b.count)
		if err := c.seg.write(c.q.buf[size : size+b.size]); err != nil {
			return err
		}
		size += b.size
		c.seg.tail += int64(b.size)
	}
	c.q = c.q.cleared()
	return nil
}

// close ends the present segment.
func (c *copier) close() error {
	if c.seg == nil {
		return nil
	}
	return errors.Join(c.flush(), c.seg.finish(0))
}
