package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Offsets into a record that stores may read without decoding it. A store's
// scripts rely on them; a change needs a new RecordVersion.
const (
	RecordVersion = 1

	offVersion     = 0
	OffIncarnation = 1  // 8 bytes, big-endian
	OffDue         = 9  // 8 bytes, big-endian microseconds
	OffAckWait     = 17 // 4 bytes, big-endian milliseconds
	OffTarget      = 21 // 1 byte length, then the target
)

const (
	flagAckMask   = 0x03
	flagGenerated = 0x04
	flagExpires   = 0x08
	flagBackoff   = 0x10
	flagReplyTo   = 0x20
	flagHeader    = 0x40
	flagJournal   = 0x80
)

// AppendRecord appends j's record to dst:
//
//	version     1 byte
//	incarnation 8 bytes, big-endian
//	due         8 bytes, big-endian microseconds
//	ack wait    4 bytes, big-endian milliseconds
//	target      1 byte length, bytes
//	flags       1 byte: ack mode (2 bits), generated, expires, backoff, reply-to, header, journal
//	attempts    uvarint: the maximum, 0 = no limit
//	expires     uvarint, microseconds after due        (if flagged)
//	backoff     uvarint count, uvarint microseconds... (if flagged)
//	reply-to    uvarint length, bytes                  (if flagged)
//	header      uvarint count, then per field uvarint length and bytes of
//	            name and value                         (if flagged)
//	journal     uvarint length, bytes                  (if flagged)
//	payload     the rest
//
// The id is the key under which a store keeps the record and not part of it.
func AppendRecord(dst []byte, j *Job) []byte {
	dst = append(dst, RecordVersion)
	dst = binary.BigEndian.AppendUint64(dst, j.Incarnation)
	dst = binary.BigEndian.AppendUint64(dst, uint64(j.Due))
	dst = binary.BigEndian.AppendUint32(dst, uint32((j.AckWait+time.Millisecond-1)/time.Millisecond))
	dst = append(dst, byte(len(j.Target)))
	dst = append(dst, j.Target...)
	flags := byte(j.Ack) & flagAckMask
	set := func(f byte, on bool) {
		if on {
			flags |= f
		}
	}
	set(flagGenerated, j.Generated)
	set(flagExpires, j.Expires != 0)
	set(flagBackoff, len(j.Backoff) > 0)
	set(flagReplyTo, j.ReplyTo != "")
	set(flagHeader, len(j.Header) > 0)
	set(flagJournal, j.Journal != "")
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(j.MaxAttempts))
	if j.Expires != 0 {
		dst = binary.AppendUvarint(dst, uint64(j.Expires-j.Due))
	}
	if len(j.Backoff) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(j.Backoff)))
		for _, d := range j.Backoff {
			dst = binary.AppendUvarint(dst, uint64(Time(0).Add(d)))
		}
	}
	if j.ReplyTo != "" {
		dst = appendString(dst, j.ReplyTo)
	}
	if len(j.Header) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(j.Header)))
		for _, f := range j.Header {
			dst = appendString(appendString(dst, f.Name), f.Value)
		}
	}
	if j.Journal != "" {
		dst = appendString(dst, j.Journal)
	}
	return append(dst, j.Payload...)
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// ErrRecord means that a record cannot be read: it is damaged, or a newer
// version wrote it.
var ErrRecord = errors.New("job record not readable")

// DecodeRecord reads the record of the job id. The job's strings share rec's
// memory; the payload is a copy.
func DecodeRecord(id, rec string) (Job, error) {
	r := reader{s: rec}
	if v := r.byte(); r.bad || v != RecordVersion {
		return Job{}, fmt.Errorf("%w: id %q: version %d, this program reads %d", ErrRecord, id, v, RecordVersion)
	}
	j := Job{ID: id, Incarnation: r.uint64(), Due: Time(r.uint64())}
	j.AckWait = time.Duration(r.uint32()) * time.Millisecond
	j.Target = r.take(uint64(r.byte()))
	flags := r.byte()
	j.Ack = AckMode(flags & flagAckMask)
	r.bad = r.bad || j.Ack > AckNone
	j.Generated = flags&flagGenerated != 0
	j.MaxAttempts = uint32(r.atMost(math.MaxUint32))
	if flags&flagExpires != 0 {
		j.Expires = j.Due + Time(r.uvarint())
	}
	if flags&flagBackoff != 0 {
		for n := r.count(1); n > 0; n-- {
			j.Backoff = append(j.Backoff, time.Duration(r.atMost(uint64(maxBackoff/time.Microsecond)))*time.Microsecond)
		}
	}
	if flags&flagReplyTo != 0 {
		j.ReplyTo = r.take(r.uvarint())
	}
	if flags&flagHeader != 0 {
		n := r.count(2)
		j.Header = make([]Field, 0, n)
		for ; n > 0; n-- {
			j.Header = append(j.Header, Field{r.take(r.uvarint()), r.take(r.uvarint())})
		}
	}
	if flags&flagJournal != 0 {
		j.Journal = r.take(r.uvarint())
	}
	if r.bad {
		return Job{}, fmt.Errorf("%w: id %q: damaged, or cut short at %d bytes", ErrRecord, id, len(rec))
	}
	j.Payload = []byte(r.s)
	return j, nil
}

// RecordTarget returns the target in rec without decoding the rest.
func RecordTarget(rec string) (string, error) {
	if len(rec) <= OffTarget || len(rec) <= OffTarget+int(rec[OffTarget]) || rec[offVersion] != RecordVersion {
		return "", ErrRecord
	}
	return rec[OffTarget+1 : OffTarget+1+int(rec[OffTarget])], nil
}

// RecordGenerated reports whether rec, which must be readable, is of a job with
// a generated id.
func RecordGenerated(rec string) bool {
	return rec[OffTarget+1+int(rec[OffTarget])]&flagGenerated != 0
}

// maxBackoff is the longest pause that a record can hold; it is cut to whole
// microseconds, so that rounding up cannot overflow.
const maxBackoff = math.MaxInt64 / time.Microsecond * time.Microsecond

// Check reports, as an *Error, what of j a record cannot hold.
func (j *Job) Check() error {
	switch {
	case len(j.ID) < 1 || len(j.ID) > 255:
		return ErrHeader.With("id of %d bytes; it must have 1 to 255", len(j.ID))
	case len(j.Target) < 1 || len(j.Target) > 255:
		return ErrTarget.With("target of %d bytes; it must have 1 to 255", len(j.Target))
	case j.AckWait < 0 || j.AckWait > MaxAckWait:
		return ErrHeader.With("ack wait of %v; it must be within 0 and %v", j.AckWait, MaxAckWait)
	case j.Ack > AckNone:
		return ErrHeader.With("acknowledgement mode %d is not known", j.Ack)
	}
	for _, d := range j.Backoff {
		if d < 0 || d > maxBackoff {
			return ErrHeader.With("backoff of %v; it must be within 0 and %v", d, maxBackoff)
		}
	}
	return nil
}

// reader takes values off the front of s; bad is set once s is too short.
type reader struct {
	s   string
	bad bool
}

func (r *reader) take(n uint64) string {
	if r.bad || n > uint64(len(r.s)) {
		r.bad = true
		return ""
	}
	v := r.s[:n]
	r.s = r.s[n:]
	return v
}

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) bigEndian(n uint64) (v uint64) {
	for _, b := range []byte(r.take(n)) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (r *reader) uint64() uint64 { return r.bigEndian(8) }
func (r *reader) uint32() uint32 { return uint32(r.bigEndian(4)) }

func (r *reader) uvarint() (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		b := r.byte()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.bad = true
	return 0
}

// atMost reads a number that is not above limit.
func (r *reader) atMost(limit uint64) uint64 {
	v := r.uvarint()
	if v > limit {
		r.bad = true
		return 0
	}
	return v
}

// count reads a number of elements of at least size bytes each.
func (r *reader) count(size int) int {
	return int(r.atMost(uint64(len(r.s) / size)))
}
