package integration

import (
	"slices"
	"strconv"
	"time"
)

// Rule says which deliveries a test takes for legal.
type Rule uint8

const (
	// Once is for tests in which no worker fails: every accepted job is
	// delivered exactly once, as attempt 1.
	Once Rule = iota
	// Again is for tests in which workers or bridges fail: a job may be
	// delivered again, but never twice as the same attempt.
	Again
	// Explained is Again, and every further delivery must have a cause; see Cause.
	Explained
	// Restored is for tests in which the store loses its data: a job that was
	// offered again starts with attempt 1 again.
	Restored
)

// Violations returns what was broken, at most a few per guarantee. Call it when
// nothing more can be delivered.
func (c *Checker) Violations(rule Rule) []Violation { return shortened(c.judge(rule)) }

// Broken counts the violations of each guarantee.
func (c *Checker) Broken(rule Rule) map[string]int {
	n := map[string]int{}
	for _, v := range c.judge(rule) {
		n[v.Guarantee]++
	}
	return n
}

func (c *Checker) judge(rule Rule) []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := slices.Clone(c.wrong)
	for _, j := range c.jobs {
		found = append(found, j.verdict(rule)...)
		for i := 1; i < len(j.delivered) && rule == Explained; i++ {
			if c.cause(j, i) == Unexplained {
				found = append(found, violation("G4", j, "is delivered as attempt %d without a cause", j.delivered[i].attempt))
			}
		}
	}
	return found
}

// verdict judges one job when all is over.
func (j *tracked) verdict(rule Rule) (found []Violation) {
	add := func(guarantee, format string, args ...any) {
		found = append(found, violation(guarantee, j, format, args...))
	}
	if j.missing() {
		add("G1", "was acknowledged and has vanished")
	}
	if j.refused && !j.accepted && j.answers == 1 && len(j.delivered) > 0 {
		add("G2", "was refused and is delivered")
	}
	if rule == Once && len(j.delivered) > 1 {
		add("G4", "is delivered %d times", len(j.delivered))
	}
	for i, d := range j.delivered {
		twice, final := j.before(i)
		switch {
		case rule == Once && d.attempt != 1:
			add("G4", "is delivered as attempt %d, but no earlier one was", d.attempt)
		case twice && rule != Restored:
			add("G4", "is delivered twice as attempt %d", d.attempt)
		case final != 0:
			add("G6", "is delivered as attempt %d, but attempt %d was confirmed as its completion", d.attempt, final)
		}
	}
	return found
}

// before says of the delivery i whether there was one of the same attempt, and
// which earlier attempt, if any, was confirmed as the completion. A job that
// was sent again because its outcome was not known may be two, with an
// incarnation each.
//
// A delivery that was under way when the completion was confirmed is a further
// one like others, and must have a cause.
func (j *tracked) before(i int) (twice bool, final uint32) {
	d := j.delivered[i]
	for k, e := range j.delivered {
		if e.incarnation != d.incarnation {
			continue
		}
		twice = twice || k < i && e.attempt == d.attempt
		if e.fate == Confirmed && e.ended.Add(underWay) < d.at && (e.attempt < d.attempt || e.attempt == d.attempt && k < i) {
			final = e.attempt
		}
	}
	return twice, final
}

// underWay is how long a message may take from the bridge to a worker.
const underWay = 20 * time.Millisecond

// perGuarantee is how many violations of one guarantee are worth reading.
const perGuarantee = 5

func shortened(all []Violation) (out []Violation) {
	n := map[string]int{}
	for _, v := range all {
		if n[v.Guarantee]++; n[v.Guarantee] <= perGuarantee {
			out = append(out, v)
		}
	}
	for g, k := range n {
		if k > perGuarantee {
			out = append(out, Violation{g, "and " + strconv.Itoa(k-perGuarantee) + " more"})
		}
	}
	return out
}
