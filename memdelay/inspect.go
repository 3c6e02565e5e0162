package memdelay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// Report is what Inspect and Salvage found in a directory.
type Report struct {
	Dir       string
	Snapshots []SnapshotReport // latest first
	Log       wal.Report
	Problems  []string // what is missing; damage of files is with them
	// What the readable parts make up.
	Pending, Running, Dead int
	Notes, Verdicts        int // of ended jobs
}

// SnapshotReport is what was found in a snapshot.
type SnapshotReport struct {
	Path    string
	Segment uint64 // of the log, from which on it goes with
	Bytes   int64
	Jobs    int
	Damage  string // empty: it can be read
}

// Damaged reports whether anything is not as it was written.
func (r *Report) Damaged() bool {
	for _, s := range r.Snapshots {
		if s.Damage != "" {
			return true
		}
	}
	return len(r.Problems)+len(r.Log.Damage()) > 0
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d pending, %d running, %d dead, %d notes of ended jobs, %d verdicts\n",
		r.Dir, r.Pending, r.Running, r.Dead, r.Notes, r.Verdicts)
	for _, s := range r.Snapshots {
		fmt.Fprintf(&b, "snapshot %s: %d bytes, %d jobs\n", filepath.Base(s.Path), s.Bytes, s.Jobs)
		if s.Damage != "" {
			fmt.Fprintf(&b, "    damaged: %s\n", s.Damage)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	b.WriteString(r.Log.String())
	return b.String()
}

// Inspect reads what can be read of dir and says what cannot. It changes nothing
// and takes no lock: of a directory in use it may miss the latest changes.
func Inspect(dir string) (Report, error) {
	r, _, err := read(dir)
	return r, err
}

// Salvage reads what can be read of dir and writes it to a new directory, which
// must be empty or not exist, for Open. dir stays as it is.
func Salvage(dir, to string) (Report, error) {
	names, err := os.ReadDir(to)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Report{}, fmt.Errorf("salvage to %s: %w", to, err)
	}
	if len(names) > 0 {
		return Report{}, fmt.Errorf("salvage: the directory %s is not empty; name one that does not exist", to)
	}
	r, found, err := read(dir)
	if err != nil {
		return r, err
	}
	if err := found.copyTo(to); err != nil {
		return r, fmt.Errorf("salvage to %s: %w", to, err)
	}
	return r, nil
}

// read makes up a store, without heaps, of what can be read of dir.
func read(dir string) (Report, *Store, error) {
	r := Report{Dir: dir}
	d := &disk{dir: dir, fs: wal.OS}
	list, err := listSnapshots(d.fs, dir)
	if err != nil {
		return r, nil, fmt.Errorf("inspect: %w", err)
	}
	s, from := New(Options{}), uint64(1)
	for _, segment := range list {
		trial := New(Options{})
		size, err := trial.loadSnapshot(d, segment)
		sr := SnapshotReport{Path: snapshotPath(dir, segment), Segment: segment, Bytes: size, Jobs: trial.entries.count}
		if err != nil {
			sr.Damage = err.Error()
		} else if from == 1 {
			s, from = trial, segment
		}
		r.Snapshots = append(r.Snapshots, sr)
	}
	first := uint64(0)
	r.Log, err = wal.Visit(dir, d.fs, func(segment uint64, rec *wal.Record) error {
		if segment < from {
			return nil
		}
		if err := s.apply(rec); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("segment %d: %v", segment, err))
		}
		return nil
	})
	for _, seg := range r.Log.Segments {
		if seg.Number >= from && first == 0 {
			first = seg.Number
		}
	}
	if first != from {
		r.Problems = append(r.Problems, fmt.Sprintf("the log from segment %d on is missing", from))
	}
	r.count(s)
	return r, s, err
}

func (r *Report) count(s *Store) {
	for slot := range uint32(s.entries.slots()) {
		switch e := s.entries.at(slot); e.place {
		case scheduled, setAside:
			r.Pending++
		case running:
			r.Running++
		case dead:
			r.Dead++
		}
	}
	r.Notes, r.Verdicts = s.chosen.len()+s.generated.len(), s.verdicts.len()
}

// copyTo writes all that the store knows to a new directory.
func (s *Store) copyTo(dir string) error {
	// No snapshot: what is logged here is never in memory.
	to, err := Open(dir, Options{SnapshotBytes: math.MaxInt64})
	if err != nil {
		return err
	}
	to.mu.Lock()
	// Each before what may say more of the same id: verdicts, notes, jobs.
	for id, n := range s.verdicts.all() {
		to.logEnd(id, &n, true)
	}
	to.append()
	for in := range noteMaps {
		for id, n := range *s.noteMap(in) {
			to.logEnd(id, &n, false)
		}
		to.append()
	}
	for from := uint32(0); from < uint32(s.entries.slots()); from += sliceLen {
		for slot := from; slot < from+sliceLen; slot++ {
			if e := s.entries.at(slot); e.place != free {
				to.logEntry(e)
			}
		}
		to.append()
	}
	err = to.commit(context.Background())
	return errors.Join(err, to.Close())
}
