package wal_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

// small returns the segments of a log with 12 records in some segments, as they are
// after Close, or after a process that was killed when idle.
func small(t *testing.T, killed bool) map[string][]byte {
	t.Helper()
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs, SegmentBytes: 512}, 0)
	put(t, l, 0, 12)
	all := files(t, fs, dir)
	closeLog(t, l)
	if killed {
		return all
	}
	return files(t, fs, dir)
}

func both(t *testing.T, f func(t *testing.T, all map[string][]byte)) {
	t.Run("closed", func(t *testing.T) { f(t, small(t, false)) })
	t.Run("killed", func(t *testing.T) { f(t, small(t, true)) })
}

// checkDamaged opens a log that had 12 records: all of them are there, or it refuses,
// says how to go on, leaves the directory as it was, and what it has can be salvaged.
func checkDamaged(t *testing.T, all map[string][]byte) (refused bool) {
	t.Helper()
	fs := disk(t, all)
	l, ids, err := tryOpen(dir, wal.Options{FS: fs, SegmentBytes: 512}, 0)
	if err == nil {
		wantIDs(t, ids, 0, 12)
		closeLog(t, l)
		return false
	}
	if !errors.Is(err, wal.ErrDamaged) {
		t.Fatalf("the error is not ErrDamaged: %v", err)
	}
	for _, part := range []string{".wal", "offset", "journal inspect --data-dir " + dir, "journal salvage --data-dir " + dir} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %q", err, part)
		}
	}
	if !maps.EqualFunc(files(t, fs, dir), all, bytes.Equal) {
		t.Fatal("Open changed a damaged log")
	}
	checkSalvage(t, fs, all)
	return true
}

func checkSalvage(t *testing.T, fs *crashfs.FS, all map[string][]byte) {
	t.Helper()
	r, err := wal.Inspect(dir, fs)
	_, first := all[segmentName(1)] // whether it should be there only the snapshots know
	if err != nil || first && (r.Damage() == nil || !strings.Contains(r.String(), "damaged at offset")) {
		t.Fatalf("Inspect finds no damage: %v, %v", r, err)
	}
	if _, err := wal.Salvage(dir, "/new", fs); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(files(t, fs, dir), all, bytes.Equal) {
		t.Fatal("Salvage changed the damaged log")
	}
	if len(r.Segments) == 0 {
		return
	}
	l, ids := open(t, "/new", wal.Options{FS: fs, SegmentBytes: 512}, r.Segments[0].Number)
	if len(ids) != r.Records() {
		t.Errorf("%d records salvaged, %d can be read", len(ids), r.Records())
	}
	closeLog(t, l)
}

func TestFlippedBits(t *testing.T) {
	both(t, func(t *testing.T, all map[string][]byte) {
		least := 12
		for name, b := range all {
			for i := range b {
				for _, bit := range []byte{1, 0x80} {
					b[i] ^= bit
					if checkDamaged(t, all) {
						r, _ := wal.Inspect(dir, disk(t, all))
						least = min(least, r.Records())
					}
					if t.Failed() {
						t.Fatalf("bit %#x of offset %d of %s", bit, i, name)
					}
					b[i] ^= bit
				}
			}
		}
		if least < 11 {
			t.Errorf("one bit costs %d records of 12", 12-least)
		}
	})
}

func TestMissingSegment(t *testing.T) {
	both(t, func(t *testing.T, all map[string][]byte) {
		for name := range all {
			less := maps.Clone(all)
			delete(less, name)
			if !checkDamaged(t, less) {
				t.Errorf("%s is missing and nobody noticed", name)
			}
		}
	})
}

// TestCutFile: whatever is cut off the end of a segment that is not the last.
func TestCutFile(t *testing.T) {
	both(t, func(t *testing.T, all map[string][]byte) {
		names := slices.Sorted(maps.Keys(all))
		for _, name := range names[:len(names)-1] {
			for i := range all[name] {
				less := maps.Clone(all)
				less[name] = all[name][:i]
				checkDamaged(t, less)
				less[name] = append(slices.Clone(less[name]), make([]byte, len(all[name])-i)...)
				checkDamaged(t, less)
				if t.Failed() {
					t.Fatalf("%s cut at %d", name, i)
				}
			}
		}
	})
}

// TestTornTail: whatever is cut off the end of the last segment, or zeroed there, in
// the middle of a batch that was never synced, what was synced stays.
func TestTornTail(t *testing.T) {
	fs := crashfs.New(1)
	l, _ := open(t, dir, wal.Options{FS: fs, SegmentBytes: 4096}, 0)
	put(t, l, 0, 8)
	end := len(bytes.TrimRight(files(t, fs, dir)[segmentName(1)], "\x00")) - wal.BatchHeader // the mark goes
	release := l.Hold()
	for i := 8; i < 12; i++ {
		l.Append(rec(i))
	}
	release()
	closeLog(t, l)
	b := files(t, fs, dir)[segmentName(1)]
	for i := end; i < len(b); i++ {
		for _, tail := range [][]byte{nil, make([]byte, len(b)-i), bytes.Repeat([]byte{0xa5}, 700)} {
			torn := append(slices.Clone(b[:i]), tail...)
			fs := disk(t, map[string][]byte{segmentName(1): torn})
			l, ids, err := tryOpen(dir, wal.Options{FS: fs, SegmentBytes: 512}, 0)
			if err != nil {
				t.Fatalf("cut at %d: %v", i, err)
			}
			if len(ids) == 8 {
				wantIDs(t, ids, 0, 8)
			} else { // the cut is behind the batch
				wantIDs(t, ids, 0, 12)
			}
			put(t, l, len(ids), 14)
			closeLog(t, l)
			l, ids = open(t, dir, wal.Options{FS: fs, SegmentBytes: 4096}, 0)
			wantIDs(t, ids, 0, 14)
			closeLog(t, l)
		}
	}
}

// TestOldBlocks: what a disk block held before the segment used it is no record.
func TestOldBlocks(t *testing.T) {
	fs := crashfs.New(1)
	for _, d := range []string{dir, "/other"} {
		l, _ := open(t, d, wal.Options{FS: fs}, 0)
		put(t, l, 0, 8)
		closeLog(t, l)
	}
	mine, other := files(t, fs, dir)[segmentName(1)], files(t, fs, "/other")[segmentName(1)]
	end := len(mine) - wal.BatchHeader
	fs = disk(t, map[string][]byte{segmentName(1): append(slices.Clone(mine[:end]), other[wal.FileHeader:]...)})
	l, ids := open(t, dir, wal.Options{FS: fs, SegmentBytes: 4096}, 0)
	wantIDs(t, ids, 0, 8)
	closeLog(t, l)
}

func TestSegmentUnderAnotherName(t *testing.T) {
	all := small(t, false)
	all[segmentName(1)], all[segmentName(2)] = all[segmentName(2)], all[segmentName(1)]
	if !checkDamaged(t, all) {
		t.Error("segments that changed their names were replayed")
	}
}

func TestSalvageRefuses(t *testing.T) {
	fs := disk(t, small(t, false))
	if _, err := wal.Salvage(dir, dir, fs); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("over the old log: %v", err)
	}
	if _, err := wal.Salvage("/nowhere", "/new", fs); err == nil {
		t.Error("of a directory that does not exist")
	}
	all := small(t, false)
	all["9999999999999999.wal"] = []byte("x")
	if _, err := wal.Salvage(dir, "/new", disk(t, all)); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a gap without end: %v", err)
	}
}

// FuzzReplay: whatever a segment holds, opening it does not panic, an error is
// ErrDamaged, and the batches before it are replayed.
func FuzzReplay(f *testing.F) {
	salt := uint64(7)
	body := append(wal.RecordBytes(rec(3)), wal.RecordBytes(rec(4))...)
	f.Add([]byte{}, uint8(0), uint32(0))
	f.Add(wal.ForgeBatch(salt, 40, 2, body), uint8(0), uint32(0))
	f.Add(wal.ForgeHead(salt, 40, 1, 1<<32-1), uint8(0), uint32(0))
	f.Add(wal.ForgeHead(salt, 4000, 0, 0), uint8(0), uint32(0))
	f.Add(body, uint8(1), uint32(2))
	f.Add(body, uint8(1), uint32(1<<31))
	f.Add(body[:len(body)-1], uint8(1), uint32(2))
	f.Add(wal.SegmentHead(1, salt, 0), uint8(2), uint32(0))
	f.Fuzz(func(t *testing.T, data []byte, mode uint8, count uint32) {
		file := append(wal.SegmentHead(1, salt, 0), wal.ForgeBatch(salt, 40, 1, wal.RecordBytes(rec(0)))...)
		prefix := 1
		switch mode % 3 {
		case 1: // a batch that is intact but for its records
			data = wal.ForgeBatch(salt, int64(len(file)), count, data)
		case 2:
			file, prefix = nil, 0
		}
		fs := disk(t, map[string][]byte{segmentName(1): append(file, data...)})
		if _, err := wal.Inspect(dir, fs); err != nil {
			t.Fatal(err)
		}
		if _, err := wal.Salvage(dir, "/new", fs); err != nil {
			t.Fatal(err)
		}
		l, ids, err := tryOpen(dir, wal.Options{FS: fs, SegmentBytes: 512}, 0)
		if err != nil {
			if !errors.Is(err, wal.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		closeLog(t, l)
		wantIDs(t, ids[:prefix], 0, prefix)
	})
}
