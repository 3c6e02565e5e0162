package wal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// reader walks through a segment.
type reader struct {
	path string
	file File
	size int64
	head fileHead

	anySalt bool // the header is damaged: the first batch gives the salt

	in     *bufio.Reader
	off    int64 // of what is read next
	body   []byte
	synced int64  // proved to be synced by what has been read
	why    errEnd // why replay ended
	goesOn bool   // it ends with a mark which says that there is a next segment
}

// errTorn: nothing was ever written to the segment that lasted.
var errTorn error = &Damage{Why: "the header of the segment is missing"}

// openSegment opens a segment for reading. A file that was being made when the
// process or the machine went down is errTorn.
func openSegment(fs FS, path string, number uint64) (*reader, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	r := &reader{path: path, file: file}
	if err := r.begin(number); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func (r *reader) begin(number uint64) (err error) {
	if r.size, err = r.file.Size(); err != nil {
		return err
	}
	var b [fileHeader]byte
	n, err := r.file.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	if allZero(b[:n]) {
		if at, err := r.nonZero(); err != nil || at < r.size {
			return errors.Join(err, r.damage(0, "the header of the segment is missing"))
		}
		return fmt.Errorf("%w (%s)", errTorn, r.path)
	}
	if n < len(b) {
		return r.damage(0, "the header of the segment is cut off")
	}
	if r.head, err = parseFileHead(b[:]); err != nil {
		return r.damage(0, err.Error())
	}
	if r.head.number != number {
		return r.damage(0, fmt.Sprintf("the file holds segment %d", r.head.number))
	}
	r.seek(fileHeader)
	return nil
}

// seek sets what is read next.
func (r *reader) seek(off int64) {
	section := io.NewSectionReader(r.file, off, max(r.size-off, 0))
	if r.in == nil {
		r.in = bufio.NewReaderSize(section, int(min(max(r.size, 4<<10), 256<<10)))
	} else {
		r.in.Reset(section)
	}
	r.off = off
}

// nonZero returns where the first byte other than zero is; size if there is none.
func (r *reader) nonZero() (int64, error) {
	r.seek(0)
	for off := int64(0); ; off++ {
		b, err := r.in.ReadByte()
		switch {
		case err == io.EOF:
			return r.size, nil
		case err != nil || b != 0:
			return off, err
		}
	}
}

// lastNonZero returns the offset behind the last byte from off on that is not zero;
// off if there is none.
func (r *reader) lastNonZero(off int64) (int64, error) {
	r.seek(off)
	for last := off; ; off++ {
		b, err := r.in.ReadByte()
		switch {
		case err == io.EOF:
			return last, nil
		case err != nil:
			return last, r.fail(err)
		case b != 0:
			last = off + 1
		}
	}
}

func allZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// errEnd: nothing that can be read as a batch follows; why says what does.
type errEnd struct{ why string }

func (e errEnd) Error() string { return e.why }

// next reads a batch: its number of records, and the bytes of them, which are valid
// until the next call. Anything but a good batch is an errEnd, with off before it.
func (r *reader) next() (count uint32, body []byte, err error) {
	h, err := r.peek()
	if err != nil {
		return 0, nil, err
	}
	if h.mark() {
		r.goesOn = h.sum == goesOn
		return 0, nil, errEnd{"a mark of the end"}
	}
	if int64(h.bytes) > r.size-r.off-batchHeader {
		return 0, nil, errEnd{"the batch is longer than the file"}
	}
	if _, err := r.in.Discard(batchHeader); err != nil {
		return 0, nil, r.fail(err)
	}
	if int64(cap(r.body)) < int64(h.bytes) {
		r.body = make([]byte, h.bytes)
	}
	body = r.body[:h.bytes]
	if _, err := io.ReadFull(r.in, body); err != nil {
		return 0, nil, r.fail(err)
	}
	if checksum(body) != h.sum {
		return h.count, body, errEnd{"checksum of the batch does not match"}
	}
	r.off += batchHeader + int64(h.bytes)
	return h.count, body, nil
}

// peek reads the batch header that follows.
func (r *reader) peek() (batchHead, error) {
	b, err := r.in.Peek(batchHeader)
	if err != nil && err != io.EOF {
		return batchHead{}, r.fail(err)
	}
	if allZero(b) {
		return batchHead{}, errEnd{"zeros"}
	}
	if len(b) < batchHeader {
		return batchHead{}, errEnd{"the header of the batch is cut off"}
	}
	if r.anySalt {
		r.head.salt = binary.BigEndian.Uint64(b[16:])
	}
	h, err := parseBatchHead(b, r.head.salt)
	if err != nil {
		return batchHead{}, errEnd{err.Error()}
	}
	r.anySalt = false
	r.synced = max(r.synced, h.synced)
	return h, nil
}

// find goes on to the next batch header or mark that belongs to this segment, and
// reports whether there is one.
func (r *reader) find() (bool, error) {
	var magic [4]byte
	binary.BigEndian.PutUint32(magic[:], batchMagic)
	for {
		want := r.in.Buffered()
		if want < batchHeader {
			want = r.in.Size()
		}
		b, err := r.in.Peek(want)
		if err != nil && err != io.EOF {
			return false, r.fail(err)
		}
		if len(b) < batchHeader {
			return false, nil
		}
		at := bytes.Index(b, magic[:])
		if at < 0 {
			r.skip(len(b) - len(magic) + 1)
			continue
		}
		r.skip(at)
		if _, err := r.peek(); !errors.As(err, new(errEnd)) {
			return err == nil, err
		}
		r.skip(1)
	}
}

// skip goes on by n bytes, which are buffered.
func (r *reader) skip(n int) {
	n, _ = r.in.Discard(n)
	r.off += int64(n)
}

// proof reads the segment from an offset on for headers that say how much of it was
// synced, and returns the greatest such offset, those read before included.
func (r *reader) proof(from int64) (synced int64, err error) {
	r.seek(from)
	for {
		found, err := r.find()
		if !found || err != nil {
			return r.synced, err
		}
		r.skip(1)
	}
}

func (r *reader) fail(err error) error { return fmt.Errorf("wal: read %s: %w", r.path, err) }

func (r *reader) damage(off int64, why string) error {
	return &Damage{Path: r.path, Offset: off, Why: why}
}

// Damage is a place in the log that cannot be read. It is an ErrDamaged.
type Damage struct {
	Path   string
	Offset int64
	Why    string
}

func (d *Damage) Error() string {
	return fmt.Sprintf("%v: %s at offset %d: %s", ErrDamaged, d.Path, d.Offset, d.Why)
}

// Is makes every Damage an ErrDamaged.
func (d *Damage) Is(target error) bool { return target == ErrDamaged }
