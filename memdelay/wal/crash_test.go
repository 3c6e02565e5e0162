package wal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// TestCrash runs random work on a log until the machine goes down at a random
// operation, opens the log again, and checks it; several times over on one disk.
// DELAYBRIDGE_CRASH_SEED runs one seed only, DELAYBRIDGE_SOAK many.
func TestCrash(t *testing.T) {
	if s := os.Getenv("DELAYBRIDGE_CRASH_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(life).run(seed); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := int64(5_000)
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		want = 200_000
	}
	base := rand.Uint64()
	var crashes, opening atomic.Int64
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for crashes.Load() < want && !t.Failed() {
				seed := base + next.Add(1)
				var l life
				if err := l.run(seed); err != nil {
					t.Errorf("%v\nagain with DELAYBRIDGE_CRASH_SEED=%d", err, seed)
				}
				crashes.Add(int64(l.crashes))
				opening.Add(int64(l.opening))
			}
		})
	}
	wg.Wait()
	t.Logf("%d crashes, %d of them while opening", crashes.Load(), opening.Load())
	if opening.Load() < want/50 {
		t.Error("hardly a crash happened while opening the log")
	}
}

// life is a disk, what was written to its log, and how much of it is known to be there.
type life struct {
	rng   *rand.Rand
	fs    *crashfs.FS
	log   *wal.Log
	o     wal.Options
	recs  []wal.Record // appended, from first on
	acked int          // of recs: on disk for certain

	from    uint64 // the segment to open from
	start   int    // of recs: the first in that segment
	round   int
	crashes int
	opening int
}

const dir = "/log"

var background = context.Background()

func (l *life) run(seed uint64) error {
	l.rng = rand.New(rand.NewPCG(seed, 1))
	l.fs = crashfs.New(seed)
	for l.round = range 6 {
		l.fs.CrashAt(1 + l.rng.IntN(5+l.rng.IntN(120)))
		l.trouble()
		l.o = wal.Options{FS: l.fs, SegmentBytes: 512 << l.rng.IntN(5)}
		err := l.open()
		if err != nil {
			l.opening++
		} else {
			for err == nil && !l.fs.Crashed() {
				err = l.step()
			}
			_ = l.log.Close()
		}
		if err != nil && !errors.Is(err, crashfs.ErrCrashed) && !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("round %d: %w", l.round, err)
		}
		l.crashes++
		l.fs = l.fs.Restart()
	}
	return nil
}

// trouble makes the disk small, or an operation fail, in some rounds.
func (l *life) trouble() {
	switch l.rng.IntN(6) {
	case 0:
		l.fs.SetSpace(int64(l.rng.IntN(30_000)))
	case 1:
		at := l.rng.IntN(60)
		l.fs.Inject(func(op crashfs.Op) error {
			if op.N == at {
				return syscall.EIO
			}
			return nil
		})
	}
}

// open opens the log and checks what is in it.
func (l *life) open() error {
	i := l.start
	log, err := wal.Open(dir, l.o, l.from, func(r *wal.Record) error {
		if i >= len(l.recs) {
			return fmt.Errorf("record %d, %q, was never appended", i, r.ID)
		}
		if w := l.recs[i]; r.ID != w.ID || r.Due != w.Due || r.State != w.State || !bytes.Equal(r.Data, w.Data) {
			return fmt.Errorf("record %d is %q, want %q", i, r.ID, w.ID)
		}
		i++
		return nil
	})
	if err != nil {
		return err
	}
	l.log = log
	if i < l.acked {
		return fmt.Errorf("%d records, %d were acknowledged", i, l.acked)
	}
	l.recs = l.recs[:i]
	if log.Err() == nil {
		l.acked = i // all that has been read lasts
	}
	return nil
}

// step does one thing; its error is a violation, or that the machine went down.
func (l *life) step() error {
	if l.log.Err() != nil && l.rng.IntN(4) == 0 {
		l.fs.SetSpace(0)
		return l.rotate()
	}
	switch n := l.rng.IntN(20); {
	case n < 13:
		return l.wait(l.log.Append(l.records()...))
	case n < 16: // several in one commit
		release := l.log.Hold()
		for range l.rng.IntN(4) {
			l.log.Append(l.records()...)
		}
		p := l.log.Append(l.records()...)
		release()
		return l.wait(p)
	case n < 18:
		return l.rotate()
	case n < 19:
		return l.reopen()
	default:
		return l.log.RemoveBefore(l.from)
	}
}

func (l *life) wait(p wal.Position) error {
	err := l.log.Wait(background, p)
	if err == nil {
		l.acked = len(l.recs)
	}
	return notFull(err)
}

func notFull(err error) error {
	if errors.Is(err, wal.ErrDiskFull) {
		return nil
	}
	return err
}

func (l *life) rotate() error {
	n, err := l.log.Rotate()
	if err != nil {
		return notFull(err)
	}
	l.acked = len(l.recs)
	if l.rng.IntN(2) == 0 {
		l.from, l.start = n, len(l.recs)
	}
	return nil
}

func (l *life) reopen() error {
	if err := l.log.Close(); err == nil {
		l.acked = len(l.recs)
	} else if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return l.open()
}

// records makes records that occur once only.
func (l *life) records() []wal.Record {
	recs := make([]wal.Record, 1+l.rng.IntN(3))
	for i := range recs {
		n := len(l.recs)
		data := make([]byte, l.rng.IntN(20)*l.rng.IntN(60))
		for j := range data {
			data[j] = byte(n + j)
		}
		recs[i] = wal.Record{
			ID: fmt.Sprintf("%d-%d", l.round, n), Due: int64(binary.BigEndian.Uint32([]byte{1, 2, byte(n), byte(l.round)})),
			State: wal.State(1 + n%5), Data: data,
		}
		l.recs = append(l.recs, recs[i])
	}
	return recs
}
