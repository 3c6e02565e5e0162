package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

const (
	version    = 1
	fileMagic  = "DLYBRWAL"
	batchMagic = 0xD1B47C5A

	fileHeader   = 40
	batchHeader  = 36
	recordHeader = 19
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// fileHead is the header of a segment.
type fileHead struct {
	number, salt uint64
	before       int64 // where the segment before ends
}

func (h fileHead) append(dst []byte) []byte {
	from := len(dst)
	dst = append(dst, fileMagic...)
	dst = binary.BigEndian.AppendUint32(dst, version)
	dst = binary.BigEndian.AppendUint64(dst, h.number)
	dst = binary.BigEndian.AppendUint64(dst, h.salt)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.before))
	return binary.BigEndian.AppendUint32(dst, checksum(dst[from:]))
}

func parseFileHead(b []byte) (fileHead, error) {
	if string(b[:8]) != fileMagic {
		return fileHead{}, errors.New("it does not begin as a segment of a log")
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != version && checksum(b[:36]) == binary.BigEndian.Uint32(b[36:]) {
		return fileHead{}, fmt.Errorf("its format has version %d, this program reads %d", v, version)
	}
	if checksum(b[:36]) != binary.BigEndian.Uint32(b[36:]) {
		return fileHead{}, errors.New("checksum of the segment's header does not match")
	}
	return fileHead{
		number: binary.BigEndian.Uint64(b[12:]),
		salt:   binary.BigEndian.Uint64(b[20:]),
		before: int64(binary.BigEndian.Uint64(b[28:])),
	}, nil
}

// batchHead is the header of a batch, or of a mark when it has no records.
type batchHead struct {
	count, bytes, sum uint32
	salt              uint64
	synced            int64
}

// goesOn, as the checksum of a mark, says that there is a next segment.
const goesOn = 1

func (h batchHead) mark() bool { return h.count == 0 && h.bytes == 0 }

func (h batchHead) put(b []byte) {
	binary.BigEndian.PutUint32(b, batchMagic)
	binary.BigEndian.PutUint32(b[4:], h.count)
	binary.BigEndian.PutUint32(b[8:], h.bytes)
	binary.BigEndian.PutUint32(b[12:], h.sum)
	binary.BigEndian.PutUint64(b[16:], h.salt)
	binary.BigEndian.PutUint64(b[24:], uint64(h.synced))
	binary.BigEndian.PutUint32(b[32:], checksum(b[:32]))
}

func parseBatchHead(b []byte, salt uint64) (h batchHead, err error) {
	switch {
	case binary.BigEndian.Uint32(b) != batchMagic:
		return h, errors.New("no batch begins here")
	case checksum(b[:32]) != binary.BigEndian.Uint32(b[32:]):
		return h, errors.New("checksum of the batch's header does not match")
	}
	h = batchHead{
		count:  binary.BigEndian.Uint32(b[4:]),
		bytes:  binary.BigEndian.Uint32(b[8:]),
		sum:    binary.BigEndian.Uint32(b[12:]),
		salt:   binary.BigEndian.Uint64(b[16:]),
		synced: int64(binary.BigEndian.Uint64(b[24:])),
	}
	if h.salt != salt {
		return batchHead{}, errors.New("the batch belongs to another segment")
	}
	return h, nil
}

func appendRecord(dst []byte, r *Record) []byte {
	if len(r.ID) > math.MaxUint16 || len(r.Data) > math.MaxInt32 {
		panic(fmt.Sprintf("wal: record of %d bytes of ID and %d of data", len(r.ID), len(r.Data)))
	}
	from := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(r.State))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(r.ID)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(r.Data)))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Due))
	dst = append(dst, r.ID...)
	dst = append(dst, r.Data...)
	binary.BigEndian.PutUint32(dst[from:], checksum(dst[from+4:]))
	return dst
}

var errRecord = errors.New("a record is longer than its batch")

// nextRecord splits the first record off b and says whether its checksum matches.
func nextRecord(b []byte) (r Record, rest []byte, intact bool, err error) {
	if len(b) < recordHeader {
		return r, nil, false, errRecord
	}
	id, data := int64(binary.BigEndian.Uint16(b[5:])), int64(binary.BigEndian.Uint32(b[7:]))
	size := recordHeader + id + data
	if size > int64(len(b)) {
		return r, nil, false, errRecord
	}
	r = Record{
		ID:    string(b[recordHeader : recordHeader+id]),
		Due:   int64(binary.BigEndian.Uint64(b[11:])),
		State: State(b[4]),
		Data:  b[recordHeader+id : size : size],
	}
	return r, b[size:], checksum(b[4:size]) == binary.BigEndian.Uint32(b), nil
}

// eachRecord calls f with every record of a batch.
func eachRecord(body []byte, count uint32, f func(*Record) error) error {
	for range count {
		r, rest, intact, err := nextRecord(body)
		if err != nil {
			return err
		}
		if !intact {
			return errors.New("checksum of a record does not match")
		}
		if err := f(&r); err != nil {
			return &replayError{err}
		}
		body = rest
	}
	if len(body) > 0 {
		return errors.New("a batch is longer than its records")
	}
	return nil
}

// replayError is an error of the callback, not of the log.
type replayError struct{ err error }

func (e *replayError) Error() string { return e.err.Error() }
func (e *replayError) Unwrap() error { return e.err }
