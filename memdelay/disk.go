package memdelay

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// disk is what makes a store durable: its log and its snapshots.
type disk struct {
	dir    string
	fs     wal.FS
	logger *slog.Logger
	log    *wal.Log

	// Guarded by the store's mutex: what the present call has changed, in
	// records whose data is in arena, and how many bytes were logged since the
	// last snapshot began.
	batch  []wal.Record
	arena  []byte
	grown  int64
	looked job.Time // when it was checked whether the store takes too much

	// The compaction: it alone uses newest, the segment of the snapshot.
	wake, stop, stopped      chan struct{}
	ctx                      context.Context
	cancel                   context.CancelFunc
	newest                   uint64
	newestBytes, formerBytes atomic.Int64
}

// close ends the compaction, then the log.
func (d *disk) close() error {
	close(d.stop)
	d.cancel()
	<-d.stopped
	return d.log.Close()
}

// size is how many bytes the store takes on disk.
func (d *disk) size() int64 {
	return d.log.Size() + d.newestBytes.Load() + d.formerBytes.Load()
}

// begin begins a call that changes something; unless it returns an error, the
// caller must end it with commit, or with append and by unlocking s.mu.
func (s *Store) begin(ctx context.Context) error {
	if err := s.lock(ctx); err != nil || s.disk == nil {
		return err
	}
	if err := s.disk.log.Err(); err != nil && !errors.Is(err, wal.ErrDiskFull) {
		s.mu.Unlock()
		return s.disk.failure(err)
	}
	return nil
}

// commit ends a call that begin began: it logs the changes, unlocks and
// returns when they, and all before them, are durable.
func (s *Store) commit(ctx context.Context) error {
	pos := s.append()
	s.mu.Unlock()
	return s.wait(ctx, pos)
}

// append puts the changes of the present call into the log, and returns what to
// wait for.
func (s *Store) append() wal.Position {
	d := s.disk
	if d == nil {
		return 0
	}
	if len(d.batch) == 0 {
		return d.log.Tail()
	}
	pos := d.log.Append(d.batch...)
	for i := range d.batch {
		d.grown += recordOverhead + int64(len(d.batch[i].ID)+len(d.batch[i].Data))
	}
	clear(d.batch)
	d.batch, d.arena = d.batch[:0], d.arena[:0]
	if s.outgrown() {
		d.signal()
	}
	return pos
}

// wait returns when the log is durable up to pos.
func (s *Store) wait(ctx context.Context, pos wal.Position) error {
	if s.disk == nil {
		return nil
	}
	return s.disk.failure(s.disk.log.Wait(ctx, pos))
}

// diskFull returns the answer to what the store cannot take because its disk is
// full, else nil.
func (s *Store) diskFull() error {
	if s.disk == nil {
		return nil
	}
	if err := s.disk.log.Err(); errors.Is(err, wal.ErrDiskFull) {
		s.disk.signal() // it may have something to remove
		return s.disk.failure(err)
	}
	return nil
}

// failure says what an error of the log means to the caller.
func (d *disk) failure(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, wal.ErrDiskFull):
		return job.ErrFull.With("the disk of the log in %s is full (%v); free space there, the bridge goes on by itself", d.dir, err)
	case errors.Is(err, wal.ErrClosed):
		return errClosed
	}
	return job.ErrUnavailable.With("the log in %s takes nothing more (%v); check the disk and restart the bridge", d.dir, err)
}
