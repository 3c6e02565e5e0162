package wal

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Log is an open log. Its methods may be called by several goroutines; Append takes
// records in the order in which it is called.
type Log struct {
	dir  string
	o    Options
	lock io.Closer

	kick    chan struct{} // something is buffered
	calls   chan func()   // for the committer to run between commits
	closing chan struct{}
	stopped chan struct{} // the committer has ended
	once    sync.Once
	closed  error // what Close returned

	seg   *segment // the committer's; nil: there is none in a new directory on a full disk
	last  uint64   // number of the last segment there was
	end   int64    // while opening: where the segment before ends
	queue queue    // the committer's: not on disk yet

	mu      sync.Mutex
	buf     queue // appended since the committer last took it
	tail    Position
	durable Position
	next    *commit // the commit that will take buf
	now     *commit // the commit under way; nil: none
	full    error   // queue holds what does not fit on the disk
	dead    error   // poisoned or closed
	sizes   map[uint64]int64
}

// commit is what those wait for whose records it has.
type commit struct {
	done chan struct{}
	last Position
	err  error // valid after done
}

func newCommit() *commit { return &commit{done: make(chan struct{})} }

// queue is batches in the making, one after the other: their headers are filled in
// when they are written.
type queue struct {
	buf     []byte
	batches []batch
}

type batch struct {
	size  int // header included
	count uint32
	last  Position
}

func (q *queue) add(recs []Record, p Position) {
	if n := len(q.batches); n == 0 || q.batches[n-1].size > batchBytes {
		q.begin()
	}
	for i := range recs {
		b := &q.batches[len(q.batches)-1]
		if b.size > batchLimit {
			q.begin()
			b = &q.batches[len(q.batches)-1]
		}
		from := len(q.buf)
		q.buf = appendRecord(q.buf, &recs[i])
		b.size += len(q.buf) - from
		b.count++
	}
	// Earlier batches of the same Append are not the whole of it.
	q.batches[len(q.batches)-1].last = p
}

func (q *queue) begin() {
	q.buf = append(q.buf, zeros[:batchHeader]...)
	b := batch{size: batchHeader}
	if n := len(q.batches); n > 0 {
		b.last = q.batches[n-1].last
	}
	q.batches = append(q.batches, b)
}

func (q queue) empty() bool { return len(q.batches) == 0 }

// cleared returns an empty queue that uses q's memory again, if it is not much.
func (q queue) cleared() queue {
	if cap(q.buf) > 4*batchBytes {
		return queue{}
	}
	return queue{buf: q.buf[:0], batches: q.batches[:0]}
}

// Append adds records to the end of the log and returns the position behind them. It
// only copies them into memory: Wait says when they are on disk. Once the log is
// poisoned or closed they are dropped, and Wait fails.
func (l *Log) Append(recs ...Record) Position {
	l.mu.Lock()
	if len(recs) == 0 {
		defer l.mu.Unlock()
		return l.tail
	}
	l.tail++
	p := l.tail
	if l.dead == nil {
		l.buf.add(recs, p)
	}
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
	return p
}

// Wait returns nil when everything up to p is on disk. While the disk is full it
// returns an ErrDiskFull at once; what was appended is kept, and goes out before
// anything newer as soon as there is room, so a later Wait for the same position may
// succeed. Every other error is for ever, except ctx's.
func (l *Log) Wait(ctx context.Context, p Position) error {
	l.mu.Lock()
	c, err := l.waitFor(p)
	l.mu.Unlock()
	if c == nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p <= l.durable {
		return nil
	}
	return c.err
}

// waitFor returns the commit that decides about p, or nil and the decision.
func (l *Log) waitFor(p Position) (*commit, error) {
	switch {
	case p <= l.durable:
		return nil, nil
	case p > l.tail:
		return nil, fmt.Errorf("wal: %s: position %d is behind the end, %d", l.dir, p, l.tail)
	case l.dead != nil:
		return nil, l.dead
	case l.full != nil:
		return nil, l.full
	case l.now != nil && p <= l.now.last:
		return l.now, nil
	default:
		return l.next, nil
	}
}

// Tail returns the position behind everything appended.
func (l *Log) Tail() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail
}

// Err returns why the log takes nothing: an ErrDiskFull while what was appended does
// not fit on the disk, an ErrPoisoned or ErrClosed for ever; nil: all is well.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead != nil {
		return l.dead
	}
	return l.full
}

// Size returns the bytes that the segments take on disk.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, size := range l.sizes {
		n += size
	}
	return n
}

// Rotate begins a new segment and returns its number: what is appended from then on
// is in it or in a later one. It waits until what was appended before is on disk.
func (l *Log) Rotate() (segment uint64, err error) {
	ran := make(chan struct{})
	call := func() {
		segment, err = l.rotateNow()
		close(ran)
	}
	select {
	case l.calls <- call:
		<-ran
		return segment, err
	case <-l.stopped:
		return 0, l.Err()
	}
}

// RemoveBefore removes the segments before segment, the present one excepted. A crash
// in the middle may leave any of them: a later Open from segment does not need them.
func (l *Log) RemoveBefore(segment uint64) error {
	l.mu.Lock()
	var old []uint64
	for n := range l.sizes {
		if n < segment && n < l.last {
			old = append(old, n)
		}
	}
	l.mu.Unlock()
	if len(old) == 0 {
		return nil
	}
	for _, n := range old {
		if err := l.o.FS.Remove(segmentPath(l.dir, n)); err != nil {
			return fmt.Errorf("wal: remove a segment: %w", err)
		}
		l.setSize(n, -1)
	}
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		return fmt.Errorf("wal: remove segments: %w", err)
	}
	return nil
}

// setSize notes the size of a segment; below zero: there is none.
func (l *Log) setSize(number uint64, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if size < 0 {
		delete(l.sizes, number)
		return
	}
	l.sizes[number] = size
}

// Close syncs what is buffered, ends the log and lets the directory go. It returns an
// error if not all that was appended is on disk.
func (l *Log) Close() error {
	l.once.Do(func() {
		close(l.closing)
		<-l.stopped
		if err := l.lock.Close(); err != nil && l.closed == nil {
			l.closed = fmt.Errorf("wal: unlock %s: %w", l.dir, err)
		}
	})
	return l.closed
}
