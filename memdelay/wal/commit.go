package wal

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// run is the committer: the only goroutine that writes. It takes what has been
// buffered meanwhile, writes and syncs it at once, and wakes those who wait.
func (l *Log) run() {
	defer close(l.stopped)
	var retry <-chan time.Time // while the disk is full
	for {
		select {
		case <-l.kick:
			// Those whom the last commit woke are about to append: let them come along.
			runtime.Gosched()
			if l.full == nil {
				_ = l.flush() // those who wait have the error
			}
		case <-retry:
			retry = nil
			_ = l.flush()
		case call := <-l.calls:
			call()
		case <-l.closing:
			l.shut()
			return
		}
		if l.full != nil && retry == nil { // only this goroutine changes it
			retry = time.After(retryEvery)
		}
	}
}

// flush puts on disk all that is buffered.
func (l *Log) flush() error {
	c := l.take()
	if c == nil {
		return l.Err()
	}
	err := l.writeQueue()
	if err == nil && l.nothingBuffered() {
		l.seg.mark()
	}
	l.settle(c, err)
	return c.err
}

func (l *Log) nothingBuffered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.empty()
}

// take moves what is buffered to the queue, and returns the commit of those who wait
// for it; nil if there is nothing to do.
func (l *Log) take() *commit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead != nil || l.full == nil && l.buf.empty() && l.queue.empty() {
		return nil
	}
	if l.queue.empty() {
		l.queue, l.buf = l.buf, l.queue.cleared()
	} else { // left over from when the disk was full
		l.queue.buf = append(l.queue.buf, l.buf.buf...)
		l.queue.batches = append(l.queue.batches, l.buf.batches...)
		l.buf = l.buf.cleared()
	}
	l.now, l.next = l.next, newCommit()
	l.now.last = l.tail
	return l.now
}

// settle ends a commit and wakes those who wait for it.
func (l *Log) settle(c *commit, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = nil
	if err != nil {
		l.failed(err)
		c.err = l.full
		if l.dead != nil {
			c.err = l.dead
		}
	} else if l.full != nil {
		l.full = nil
		l.o.Logger.Info("log: the disk has room again, all that was waiting is written", "dir", l.dir)
	}
	close(c.done)
}

// failed takes note of an error of writing, and fails those who wait for the next
// commit; l.mu is held.
func (l *Log) failed(err error) {
	switch {
	case !diskFull(err):
		l.o.Logger.Error("log: it cannot be written and takes nothing more until a restart", "dir", l.dir, "error", err)
		l.die(fmt.Errorf("wal: %w: %s: %w", ErrPoisoned, l.dir, err))
		return
	case l.full == nil:
		l.full = fmt.Errorf("wal: %w: free space for %s: %w", ErrDiskFull, l.dir, err)
		l.o.Logger.Error("log: disk full, trying again until there is room", "dir", l.dir, "error", err)
	}
	l.failNext(l.full)
}

// die makes err the end of the log; l.mu is held.
func (l *Log) die(err error) {
	l.dead, l.full = err, nil
	l.buf, l.queue = queue{}, queue{}
	l.failNext(err)
}

func (l *Log) failNext(err error) {
	l.next.err = err
	close(l.next.done)
	l.next = newCommit()
}

// writeQueue writes and syncs the queue. On an error what is not on disk stays in it.
func (l *Log) writeQueue() error {
	q := l.queue
	if l.seg == nil {
		if err := l.makeRoom(0); err != nil {
			return err
		}
	}
	for !q.empty() {
		n, size, err := l.writeSome(q)
		if err != nil {
			l.queue = q
			return err
		}
		q.buf, q.batches = q.buf[size:], q.batches[n:]
	}
	l.queue = l.queue.cleared()
	return nil
}

// writeSome writes and syncs as many batches of q as fit into the present segment,
// one at least, and returns how many and their bytes.
func (l *Log) writeSome(q queue) (n, size int, err error) {
	if err := l.makeRoom(q.batches[0].size); err != nil {
		return 0, 0, err
	}
	s := l.seg
	for _, b := range q.batches {
		if n > 0 && s.tail+int64(size+b.size) > s.limit {
			break
		}
		s.seal(q.buf[size:size+b.size], b.count)
		n, size = n+1, size+b.size
	}
	if err := s.write(q.buf[:size]); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := s.sync(); err != nil {
		return 0, 0, err
	}
	if l.o.OnSync != nil {
		l.o.OnSync(time.Since(start), n, size)
	}
	s.tail += int64(size)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes[s.number] = s.room
	l.durable = max(l.durable, q.batches[n-1].last)
	return n, size, nil
}

// makeRoom begins the next segment if a batch of size does not fit into the present
// one. Where that fails the present one grows on.
func (l *Log) makeRoom(size int) error {
	s := l.seg
	if s != nil && (s.tail == fileHeader || s.tail+int64(size) <= s.limit) {
		return nil
	}
	_, err := l.rotate()
	if err == nil || s == nil || errors.Is(err, errUnknown) {
		return err
	}
	l.o.Logger.Warn("log: no new segment, the present one grows on", "segment", s.path, "error", err)
	s.limit += l.o.SegmentBytes
	return nil
}

// rotate ends the present segment and begins the next.
func (l *Log) rotate() (uint64, error) {
	old, before := l.seg, int64(0)
	if old != nil {
		before = old.tail
	}
	next, err := createSegment(l.o.FS, l.dir, l.last+1, before, l.o.SegmentBytes)
	if err != nil {
		return 0, fmt.Errorf("wal: begin a segment: %w", err)
	}
	if old != nil {
		if err := old.finish(goesOn); err != nil { // it is complete without the mark
			l.o.Logger.Warn("log: a segment could not be finished", "segment", old.path, "error", err)
		}
		l.setSize(old.number, old.tail+batchHeader)
	}
	l.seg = next
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = next.number
	l.sizes[next.number] = next.room
	return next.number, nil
}

// rotateNow is Rotate in the committer.
func (l *Log) rotateNow() (uint64, error) {
	if err := l.flush(); err != nil {
		return 0, err
	}
	number, err := l.rotate()
	switch {
	case errors.Is(err, errUnknown):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed(err)
		return 0, l.dead
	case err != nil && diskFull(err):
		return 0, fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return number, err
}

// shut is the end of the committer.
func (l *Log) shut() {
	err := l.flush()
	l.mu.Lock()
	l.die(fmt.Errorf("wal: %s: %w", l.dir, ErrClosed))
	l.mu.Unlock()
	switch {
	case l.seg == nil:
	case err == nil:
		err = l.seg.finish(0)
	default:
		err = errors.Join(err, l.seg.file.Close())
	}
	if err != nil {
		l.closed = fmt.Errorf("wal: close %s: %w", l.dir, err)
	}
}
