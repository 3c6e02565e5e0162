package integration

import "strconv"

// Rule says which deliveries a test takes for legal.
type Rule uint8

const (
	// Once is for tests in which no worker fails: every accepted job is
	// delivered exactly once, as attempt 1.
	Once Rule = iota
	// Again is for tests in which workers or bridges fail: a job may be
	// delivered again, but never twice as the same attempt.
	Again
)

// Violations returns what was broken, at most a few per guarantee. Call it when
// nothing more can be delivered.
func (c *Checker) Violations(rule Rule) []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.wrong
	for _, j := range c.jobs {
		found = append(found, j.verdict(rule)...)
	}
	return shortened(found)
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
	seen := map[uint64]bool{}
	for _, d := range j.delivered {
		switch {
		case rule == Once && d.Attempt != 1:
			add("G4", "is delivered as attempt %d, but no earlier one was", d.Attempt)
		case seen[d.Attempt]:
			add("G4", "is delivered twice as attempt %d", d.Attempt)
		case j.confirmed != 0 && d.Attempt > j.confirmed:
			add("G6", "is delivered as attempt %d, but attempt %d was confirmed as its completion", d.Attempt, j.confirmed)
		case j.accepted && (d.ID != j.id || !d.Due.Equal(j.due)):
			add("G2", "is delivered as id %q due %s", d.ID, stamp(d.Due))
		}
		seen[d.Attempt] = true
	}
	return found
}

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
