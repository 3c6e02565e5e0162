package redisdelay

import (
	"crypto/rand"
	"encoding/binary"
	"hash/fnv"

	"github.com/delaybridge/delaybridge/job"
)

// tagLen is the length of the tag with which a member of inf ends.
const tagLen = 8

// A tag is 6 random bytes and 2 that stand for the owner's bridge: its code. meta
// says which one has the code; the leases of others, and of workers, are in the
// owner hash. The nonce that goes
// out with a delivery is the tag mixed with incarnation and attempt: a Ref whose
// parts do not belong together leads to another tag, so finding the tag checks
// all of the Ref at once.

// newTags returns n tags of the owner, or of its bridge.
func newTags(n int, owner string) []byte {
	tags := make([]byte, tagLen*n)
	rand.Read(tags) // never fails
	h := fnv.New32a()
	bridge, _ := job.SplitOwner(owner)
	_, _ = h.Write([]byte(bridge)) // never fails
	sum := h.Sum32()
	for i := 0; i < len(tags); i += tagLen {
		binary.BigEndian.PutUint16(tags[i+6:], uint16(sum^sum>>16))
	}
	return tags
}

// cutOwner is what is kept of an owner.
func cutOwner(owner string) string { return owner[:min(len(owner), job.MaxOwner)] }

// NewNonce returns the nonce of a delivery that is leased in another store and
// may come here with Merge. Like those of Claim it stands for the owner.
func NewNonce(incarnation uint64, attempt uint32, owner string) uint64 {
	for {
		if n := nonceOf(newTags(1, owner), incarnation, attempt); n != 0 {
			return n
		}
	}
}

// mix is a number that any change of incarnation or attempt changes.
func mix(incarnation uint64, attempt uint32) uint64 {
	return incarnation*0x9e3779b97f4a7c15 ^ uint64(attempt)*0xbf58476d1ce4e5b9
}

// nonceOf is the nonce of the delivery under that tag.
func nonceOf(tag []byte, incarnation uint64, attempt uint32) uint64 {
	return binary.BigEndian.Uint64(tag) ^ mix(incarnation, attempt)
}

// appendTag appends the tag that the Ref's lease has.
func appendTag(dst []byte, r *job.Ref) []byte {
	return binary.BigEndian.AppendUint64(dst, r.Nonce^mix(r.Incarnation, r.Attempt))
}

// appendLease appends the member of inf that stands for the Ref's lease. A Ref
// without a nonce names none.
func appendLease(dst []byte, r *job.Ref) []byte {
	if dst = append(dst, r.ID...); r.Nonce == 0 {
		return append(dst, "no lease"...)
	}
	return appendTag(dst, r)
}

// leaseID is the id in a member of inf.
func leaseID(lease string) string { return lease[:max(0, len(lease)-tagLen)] }

// tries is a run state: what is kept of the attempts that ended.
type tries struct {
	attempts, base uint32
	at             job.Time // of the next attempt
	text           string   // why a dead job is dead
}

const triesLen = 16

func parseTries(own string) tries {
	if len(own) < triesLen {
		return tries{}
	}
	b := []byte(own[:triesLen])
	return tries{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), job.Time(binary.BigEndian.Uint64(b[8:])), own[triesLen:]}
}

// next is when the next attempt of a pending job is: of one without a run state
// when it is due.
func (t *tries) next(due job.Time) job.Time {
	if t.at == 0 {
		return due
	}
	return t.at
}

func appendTries(dst []byte, t tries) []byte {
	dst = binary.BigEndian.AppendUint32(dst, t.attempts)
	dst = binary.BigEndian.AppendUint32(dst, t.base)
	return append(binary.BigEndian.AppendUint64(dst, uint64(t.at)), t.text...)
}
