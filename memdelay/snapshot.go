package memdelay

import (
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay/wal"
)

// A snapshot is a file named by a segment of the log: with the records from
// that segment on it makes up the whole state.
//
//	magic    8 bytes
//	segment  8 bytes, big-endian, as all numbers here
//	size     8 bytes, of the body
//	checksum 4 bytes, CRC-32C of the body
//	checksum 4 bytes, CRC-32C of the above
//	body     a gob stream of parts, the last one with the counts
//
// It is not of one moment: calls go on while it is written, and the log knows
// what they do. So every record must do no harm to what it has been applied to
// already.
const (
	snapshotMagic  = "DLYBSNP1"
	snapshotHeader = 32
	snapshotSuffix = ".snapshot"
	// sliceLen is how many jobs or notes are copied before others get the lock.
	sliceLen = 1024
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errSnapshot means that a snapshot cannot be used.
var errSnapshot = errors.New("snapshot damaged")

// part is one value in the body of a snapshot.
type part struct {
	Head  *head
	Jobs  []image
	Notes []noteImage
	End   *counts
}

// head is the first part.
type head struct {
	Now                             job.Time
	ChosenStarted, GeneratedStarted job.Time
}

// counts is the last part.
type counts struct{ Jobs, Notes int }

// noteImage is a note as snapshots keep it.
type noteImage struct {
	In                   byte // which map
	ID, Target           string
	Incarnation, Nonce   uint64
	Due, At              job.Time
	Attempt              uint32
	Cancelled, Generated bool
}

// The maps that hold notes.
const (
	inChosen byte = iota
	inChosenOld
	inGenerated
	inGeneratedOld
	noteMaps
	inVerdicts = noteMaps // not a map of notes, but kept as one
)

// noteMap returns one of the maps that hold notes.
func (h *held) noteMap(in byte) *map[string]note {
	return [noteMaps]*map[string]note{&h.chosen.cur, &h.chosen.old, &h.generated.cur, &h.generated.old}[in]
}

func snapshotPath(dir string, segment uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016d%s", segment, snapshotSuffix))
}

// listSnapshots returns the segments of the snapshots in dir, latest first.
func listSnapshots(fs wal.FS, dir string) ([]uint64, error) {
	names, err := fs.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []uint64
	for _, name := range names {
		if digits, ok := strings.CutSuffix(name, snapshotSuffix); ok && len(digits) == 16 {
			if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
				list = append(list, n)
			}
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list, nil
}

// writer writes a body into memory of a fixed size.
type writer struct {
	b   []byte
	n   int
	sum uint32
}

// errTooSmall means that the memory was too small.
var errTooSmall = errors.New("snapshot larger than expected")

func (w *writer) Write(p []byte) (int, error) {
	if len(p) > len(w.b)-w.n {
		return 0, errTooSmall
	}
	copy(w.b[w.n:], p)
	w.n += len(p)
	w.sum = crc32.Update(w.sum, castagnoli, p)
	return len(p), nil
}

// writeSnapshot writes a snapshot that goes with segment into b and returns its
// size. Between slices it stops once stop is closed.
func (s *Store) writeSnapshot(b []byte, segment uint64, stop <-chan struct{}) (int, error) {
	if len(b) < snapshotHeader {
		return 0, errTooSmall
	}
	w := &writer{b: b[snapshotHeader:]}
	enc := gob.NewEncoder(w)
	err := s.parts(func(p *part) error {
		select {
		case <-stop:
			return errClosed
		default:
			return enc.Encode(p)
		}
	})
	if err != nil {
		return 0, err
	}
	h := append(b[:0], snapshotMagic...)
	h = binary.BigEndian.AppendUint64(h, segment)
	h = binary.BigEndian.AppendUint64(h, uint64(w.n))
	h = binary.BigEndian.AppendUint32(h, w.sum)
	binary.BigEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
	return snapshotHeader + w.n, nil
}

// parts gives the state to emit, in slices.
func (s *Store) parts(emit func(*part) error) error {
	s.mu.Lock()
	first := head{s.now, s.chosen.started, s.generated.started}
	slots := uint32(s.entries.slots())
	var notes [noteMaps]map[string]note // rotating takes nothing from these
	for in := range noteMaps {
		notes[in] = *s.noteMap(in)
	}
	s.mu.Unlock()
	if err := emit(&part{Head: &first}); err != nil {
		return err
	}
	var total counts
	jobs := make([]image, 0, sliceLen)
	for from := uint32(0); from < slots; from += sliceLen {
		if jobs = s.slice(jobs[:0], from, min(from+sliceLen, slots)); len(jobs) == 0 {
			continue
		}
		total.Jobs += len(jobs)
		if err := emit(&part{Jobs: jobs}); err != nil {
			return err
		}
	}
	for in := range noteMaps {
		n, err := s.noteParts(in, maps.All(notes[in]), emit)
		if err != nil {
			return err
		}
		total.Notes += n
	}
	n, err := s.noteParts(inVerdicts, s.verdicts.all(), emit)
	if err != nil {
		return err
	}
	total.Notes += n
	return emit(&part{End: &total})
}

// slice appends the jobs in a range of slots.
func (s *Store) slice(jobs []image, from, to uint32) []image {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := from; slot < to; slot++ {
		if e := s.entries.at(slot); e.place != free {
			jobs = append(jobs, e.image())
		}
	}
	return jobs
}

// noteParts gives those of all notes that are still of use to emit and returns
// how many they were. Others may add and remove some while the lock is not held.
func (s *Store) noteParts(in byte, all iter.Seq2[string, note], emit func(*part) error) (total int, err error) {
	notes := make([]noteImage, 0, sliceLen)
	give := func() error {
		s.mu.Unlock()
		defer s.mu.Lock()
		total += len(notes)
		err := emit(&part{Notes: notes})
		notes = notes[:0]
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range all {
		if in != inVerdicts && s.now >= n.at.Add(s.options.DedupWindow) {
			continue
		}
		notes = append(notes, noteImage{in, id, n.target, n.incarnation, n.nonce, n.due, n.at, n.attempt, n.cancelled, n.generated})
		if len(notes) == sliceLen {
			if err := give(); err != nil {
				return 0, err
			}
		}
	}
	if len(notes) > 0 {
		err = give()
	}
	return total, err
}

// checkSnapshot returns the body of a snapshot.
func checkSnapshot(b []byte, segment uint64) ([]byte, error) {
	if len(b) < snapshotHeader || string(b[:8]) != snapshotMagic {
		return nil, fmt.Errorf("%w: offset 0: it does not begin as one", errSnapshot)
	}
	if crc32.Checksum(b[:snapshotHeader-4], castagnoli) != binary.BigEndian.Uint32(b[snapshotHeader-4:]) {
		return nil, fmt.Errorf("%w: offset 0: checksum of the header", errSnapshot)
	}
	if n := binary.BigEndian.Uint64(b[8:]); n != segment {
		return nil, fmt.Errorf("%w: offset 8: it is of segment %d", errSnapshot, n)
	}
	size, body := binary.BigEndian.Uint64(b[16:]), b[snapshotHeader:]
	if size > uint64(len(body)) {
		return nil, fmt.Errorf("%w: offset %d: cut short, its body has %d bytes", errSnapshot, len(b), size)
	}
	body = body[:size]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[24:]) {
		return nil, fmt.Errorf("%w: offset %d: checksum of the body", errSnapshot, snapshotHeader)
	}
	return body, nil
}

// load makes the store, which is empty and has no heaps yet, what a body of a
// snapshot says.
func (s *Store) load(body io.Reader) error {
	dec := gob.NewDecoder(body)
	var total counts
	for {
		var p part // a new one: what is zero is not sent
		if err := dec.Decode(&p); err != nil {
			return fmt.Errorf("%w: after %d jobs and %d notes: %w", errSnapshot, total.Jobs, total.Notes, err)
		}
		if p.Head != nil {
			s.now, s.chosen.started, s.generated.started = p.Head.Now, p.Head.ChosenStarted, p.Head.GeneratedStarted
		}
		total.Jobs += len(p.Jobs)
		for i := range p.Jobs {
			s.restore(&p.Jobs[i])
		}
		total.Notes += len(p.Notes)
		for i := range p.Notes {
			s.restoreNote(&p.Notes[i])
		}
		if p.End != nil && *p.End != total {
			return fmt.Errorf("%w: it has %+v, and should have %+v", errSnapshot, total, *p.End)
		}
		if p.End != nil {
			return nil
		}
	}
}

func (s *Store) restoreNote(im *noteImage) {
	n := note{
		incarnation: im.Incarnation, nonce: im.Nonce, due: im.Due, at: im.At, target: im.Target,
		attempt: im.Attempt, cancelled: im.Cancelled, generated: im.Generated,
	}
	s.seen = max(s.seen, n.incarnation)
	if im.In == inVerdicts {
		s.verdicts.add(im.ID, n)
		return
	}
	m := s.noteMap(im.In % noteMaps)
	if *m == nil {
		*m = map[string]note{}
	}
	(*m)[im.ID] = n
}
