package job

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A generated id is 12 characters of the alphabet: two for the shard, nine
// random ones (54 bits) and one that checks the others, so that ids which
// producers choose, such as order-000001, are hardly ever taken for one.
const (
	idLen      = 12
	idAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"
)

// MaxShards is how many shards a generated id can name.
const MaxShards = 64 * 64

// idDigit is the value of each character of idAlphabet, 0xff for the others.
var idDigit = func() (d [256]byte) {
	for i := range d {
		d[i] = 0xff
	}
	for i := range len(idAlphabet) {
		d[idAlphabet[i]] = byte(i)
	}
	return d
}()

// NewID mints an id that names shard, which must be below [MaxShards]. Ids may
// collide, if hardly ever: a store that finds one taken mints another.
func NewID(shard uint16) string {
	var b [idLen]byte
	b[0] = idAlphabet[shard>>6&63]
	b[1] = idAlphabet[shard&63]
	r := rand.Uint64()
	for i := 2; i < idLen-1; i++ {
		b[i] = idAlphabet[r&63]
		r >>= 6
	}
	b[idLen-1] = idAlphabet[idCheck(string(b[:idLen-1]))]
	return string(b[:])
}

// idCheck is the value of the last character of an id that begins with s.
func idCheck(s string) byte {
	sum := 29
	for i := range len(s) {
		sum = sum*5 + int(idDigit[s[i]])
	}
	return byte(sum & 63)
}

// IDShard returns the shard that id names, and whether id has the form of a
// generated one. A producer may choose an id of that form too: it is then
// kept, and found again, in that shard.
func IDShard(id string) (shard uint16, ok bool) {
	if len(id) != idLen {
		return 0, false
	}
	for i := range len(id) {
		if idDigit[id[i]] == 0xff {
			return 0, false
		}
	}
	if idDigit[id[idLen-1]] != idCheck(id[:idLen-1]) {
		return 0, false
	}
	return uint16(idDigit[id[0]])<<6 | uint16(idDigit[id[1]]), true
}

var lastIncarnation atomic.Uint64

// NextIncarnation mints the incarnation of a new job: nanoseconds since the
// Unix epoch, raised where needed so that every call of this process returns
// more than the one before, also when the clock steps back.
func NextIncarnation() uint64 {
	now := uint64(time.Now().UnixNano())
	for {
		last := lastIncarnation.Load()
		next := max(now, last+1)
		if lastIncarnation.CompareAndSwap(last, next) {
			return next
		}
	}
}

// RaiseIncarnation makes NextIncarnation return more than seen, which a store
// found in what it kept: the clock may have been ahead when it was minted.
func RaiseIncarnation(seen uint64) {
	for {
		last := lastIncarnation.Load()
		if last >= seen || lastIncarnation.CompareAndSwap(last, seen) {
			return
		}
	}
}
