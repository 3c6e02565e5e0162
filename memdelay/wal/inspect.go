package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

type segmentFile struct {
	number uint64
	size   int64
}

// listSegments returns the segments in dir in order of their numbers.
func listSegments(fs FS, dir string) ([]segmentFile, error) {
	names, err := fs.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("wal: list the segments: %w", err)
	}
	var list []segmentFile
	for _, name := range names {
		number, ok := segmentNumber(name)
		if !ok {
			continue
		}
		size, err := sizeOf(fs, filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("wal: list the segments: %w", err)
		}
		list = append(list, segmentFile{number, size})
	}
	return list, nil
}

func sizeOf(fs FS, path string) (int64, error) {
	f, err := fs.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return f.Size()
}

// Report is what Inspect and Salvage found in a log.
type Report struct {
	Dir      string
	Segments []SegmentReport
}

// SegmentReport is what was found in one segment.
type SegmentReport struct {
	Number  uint64
	Path    string
	Bytes   int64 // of the file
	Batches int
	Records int
	States  map[State]int // records by state
	Damage  []Damage      // empty: it is as it was written
	// Cut is what a crash left behind the end that was never reported as durable, in
	// bytes. Open drops it.
	Cut int64
}

// Damage returns all damage of the log.
func (r Report) Damage() []Damage {
	var all []Damage
	for _, s := range r.Segments {
		all = append(all, s.Damage...)
	}
	return all
}

// Records returns how many records can be read.
func (r Report) Records() int {
	n := 0
	for _, s := range r.Segments {
		n += s.Records
	}
	return n
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "log in %s: %d segments, %d records", r.Dir, len(r.Segments), r.Records())
	for _, s := range r.Segments {
		fmt.Fprintf(&b, "\n  %s: %d bytes, %d batches, %d records%s", filepath.Base(s.Path), s.Bytes, s.Batches, s.Records, s.states())
		if s.Cut > 0 {
			fmt.Fprintf(&b, "\n    %d bytes at the end were cut short by a crash", s.Cut)
		}
		for _, d := range s.Damage {
			fmt.Fprintf(&b, "\n    damaged at offset %d: %s", d.Offset, d.Why)
		}
	}
	return b.String()
}

func (s SegmentReport) states() string {
	var parts []string
	for state, n := range s.States {
		parts = append(parts, fmt.Sprintf("%v %d", state, n))
	}
	slices.Sort(parts)
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// Inspect reads all that can be read of the log in dir and says what cannot. It
// changes nothing and takes no lock: of a log in use the last batch may be missing.
func Inspect(dir string, fs FS) (Report, error) {
	return walk(dir, fs, func(uint64, *Record) error { return nil })
}

// walk calls visit with every record that can be read.
func walk(dir string, fs FS, visit func(segment uint64, r *Record) error) (Report, error) {
	if fs == nil {
		fs = OS
	}
	files, err := listSegments(fs, dir)
	if err != nil {
		return Report{}, err
	}
	report := Report{Dir: dir}
	for i, f := range files {
		if i > 0 && f.number != files[i-1].number+1 {
			gap := files[i-1].number + 1
			path := segmentPath(dir, gap)
			why := fmt.Sprintf("the segment is missing, up to the one before %s", filepath.Base(segmentPath(dir, f.number)))
			report.Segments = append(report.Segments, SegmentReport{Number: gap, Path: path, Damage: []Damage{{Path: path, Why: why}}})
		}
		w := walker{fs: fs, last: i == len(files)-1, visit: visit}
		if !w.last && files[i+1].number == f.number+1 {
			w.end = endOf(fs, dir, files[i+1].number)
		}
		s, err := w.segment(segmentPath(dir, f.number), f)
		if err != nil {
			return report, err
		}
		report.Segments = append(report.Segments, s)
	}
	return report, nil
}

// endOf is where the segment before number ends; zero: unknown.
func endOf(fs FS, dir string, number uint64) int64 {
	r, err := openSegment(fs, segmentPath(dir, number), number)
	if err != nil {
		return 0
	}
	_ = r.file.Close()
	return r.head.before
}

// walker reads one segment, past all damage.
type walker struct {
	fs     FS
	last   bool
	end    int64 // as the next segment says; zero: unknown
	visit  func(segment uint64, r *Record) error
	report SegmentReport
	r      *reader
}

func (w *walker) segment(path string, f segmentFile) (SegmentReport, error) {
	w.report = SegmentReport{Number: f.number, Path: path, Bytes: f.size, States: map[State]int{}}
	r, err := openSegment(w.fs, path, f.number)
	if errors.Is(err, errTorn) && w.last {
		w.report.Cut = f.size
		return w.report, nil
	}
	if d := (*Damage)(nil); errors.As(err, &d) {
		w.damage(d.Offset, d.Why)
		r, err = openHeadless(w.fs, path)
	}
	if err != nil || r == nil {
		return w.report, err
	}
	w.r = r
	err = w.batches()
	return w.report, errors.Join(err, r.file.Close())
}

// openHeadless opens a segment whose header is damaged: the first batch that can be
// found has the salt, too. It returns nil where there is none.
func openHeadless(fs FS, path string) (*reader, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	r := &reader{path: path, file: file, anySalt: true}
	if r.size, err = file.Size(); err == nil {
		r.seek(min(fileHeader, r.size))
		var found bool
		if found, err = r.find(); found {
			r.seek(min(fileHeader, r.size))
			return r, nil
		}
	}
	return nil, errors.Join(err, file.Close())
}

func (w *walker) damage(off int64, why string) {
	w.report.Damage = append(w.report.Damage, Damage{Path: w.report.Path, Offset: off, Why: why})
}

// batches reads all batches up to where the segment was synced.
func (w *walker) batches() error {
	end := w.end
	if end == 0 {
		var err error
		if end, err = w.r.proof(fileHeader); err != nil {
			return err
		}
	}
	w.r.seek(fileHeader)
	for {
		at := w.r.off
		count, body, err := w.r.next()
		var why errEnd
		switch {
		case err == nil:
			err = w.records(body, count)
		case !errors.As(err, &why):
		case at >= end:
			return w.atEnd(at)
		case at >= w.r.size:
			w.damage(at, fmt.Sprintf("the file ends here, it was written and synced up to offset %d", end))
			return nil
		default:
			w.damage(at, why.why)
			err = w.resume(at, body)
		}
		if err != nil {
			return err
		}
	}
}

// atEnd looks at what is behind the last batch.
func (w *walker) atEnd(at int64) error {
	if w.end > 0 && at > w.end {
		w.damage(w.end, "the next segment says that this one ends here, but it goes on")
	}
	if !w.last {
		return nil
	}
	w.r.seek(at)
	if h, err := w.r.peek(); err == nil && h.mark() {
		if h.sum == goesOn {
			w.damage(at, "the next segment is missing")
		}
		return nil
	}
	last, err := w.r.lastNonZero(at)
	w.report.Cut = last - at
	return err
}

// resume goes on behind a batch that is damaged: with what is intact of its records,
// if its header is, else at the next header.
func (w *walker) resume(at int64, body []byte) error {
	if body == nil {
		w.r.seek(min(at+1, w.r.size))
		if found, err := w.r.find(); err != nil || found {
			return err
		}
		w.r.seek(w.r.size)
		return nil
	}
	for rest := body; len(rest) > 0; {
		r, next, intact, err := nextRecord(rest)
		if err != nil {
			break
		}
		if intact {
			if err := w.record(&r); err != nil {
				return err
			}
		}
		rest = next
	}
	w.r.seek(at + batchHeader + int64(len(body)))
	return nil
}

func (w *walker) records(body []byte, count uint32) error {
	w.report.Batches++
	err := eachRecord(body, count, w.record)
	if own := (*replayError)(nil); err == nil || errors.As(err, &own) {
		return err
	}
	w.damage(w.r.off-batchHeader-int64(len(body)), err.Error())
	return nil
}

func (w *walker) record(r *Record) error {
	w.report.Records++
	w.report.States[r.State]++
	return w.visit(w.report.Number, r)
}
