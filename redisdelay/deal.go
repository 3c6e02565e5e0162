package redisdelay

import (
	"bytes"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// dealer deals the deliveries of one claim to the owners that have slots, in
// turn. Which of them a shard's deliveries go to is settled before it is asked, so
// that a repeated call means the same.
type dealer struct {
	left  []job.Slot
	hands int
}

// newDealer returns the dealer of the request, and limits the request to what the
// owners take together; nil: there are no slots.
func newDealer(r *job.ClaimRequest) *dealer {
	if r.Target == "" || len(r.Slots) == 0 {
		return nil
	}
	d, free := &dealer{}, 0
	for _, s := range r.Slots {
		// Of more owners than deliveries the first ones have their turn.
		if s.Free > 0 && len(d.left) < r.Max {
			d.left = append(d.left, job.Slot{Owner: cutOwner(s.Owner), Free: s.Free})
			free += min(s.Free, r.Max)
		}
	}
	r.Max = min(r.Max, free)
	return d
}

// add adds the owners of up to n deliveries to a claim's call, as entries of the
// owner hash: each behind its tag. Every call begins
// with the next owner: the first one would else get most where shards have little.
func (d *dealer) add(c *call, tags []byte) {
	if d == nil {
		return
	}
	at := d.hands
	d.hands++
	for tag := range slices.Chunk(tags, tagLen) {
		at %= len(d.left)
		s := &d.left[at]
		c.add(append(tag[:tagLen:tagLen], s.Owner...))
		if s.Free--; s.Free > 0 {
			at++
		} else {
			d.left = append(d.left[:at], d.left[at+1:]...)
		}
	}
}

// tagIndex is where a tag is among tags: at i, or after a repeated call, which
// leaves out what has ended, further on.
func tagIndex(tags, tag []byte, i int) int {
	for ; tagLen*(i+1) < len(tags); i++ {
		if bytes.Equal(tags[tagLen*i:tagLen*(i+1)], tag) {
			break
		}
	}
	return i
}
