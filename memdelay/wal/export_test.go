package wal

import "encoding/binary"

// What tests need to forge files.
const (
	FileHeader   = fileHeader
	BatchHeader  = batchHeader
	RecordHeader = recordHeader
)

// Hold stops the committer until release is called, so that what is appended between
// goes out in one commit.
func (l *Log) Hold() (release func()) {
	held := make(chan struct{})
	select {
	case l.calls <- func() { <-held }:
	case <-l.stopped:
	}
	return func() { close(held) }
}

// SegmentHead returns a valid header of a segment.
func SegmentHead(number, salt uint64, before int64) []byte {
	return fileHead{number: number, salt: salt, before: before}.append(nil)
}

// SaltOf returns the salt in the header of a segment.
func SaltOf(file []byte) uint64 { return binary.BigEndian.Uint64(file[20:]) }

// ForgeBatch returns a batch whose header and checksum are valid, whatever body is.
func ForgeBatch(salt uint64, synced int64, count uint32, body []byte) []byte {
	b := append(make([]byte, batchHeader), body...)
	batchHead{count: count, bytes: uint32(len(body)), sum: checksum(body), salt: salt, synced: synced}.put(b)
	return b
}

// ForgeHead returns a valid header of a batch that may not be there.
func ForgeHead(salt uint64, synced int64, count, bytes uint32) []byte {
	b := make([]byte, batchHeader)
	batchHead{count: count, bytes: bytes, salt: salt, synced: synced}.put(b)
	return b
}

// RecordBytes returns a record as it is in a batch.
func RecordBytes(r Record) []byte { return appendRecord(nil, &r) }
