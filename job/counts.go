package job

// Counts says how many jobs a store holds, by state.
type Counts struct {
	Pending int `json:"pending"` // those set aside included
	Aside   int `json:"aside"`   // set aside: their targets take nothing now
	Running int `json:"running"`
	Dead    int `json:"dead"`
}

// Add returns the sum of c and o.
func (c Counts) Add(o Counts) Counts {
	return Counts{c.Pending + o.Pending, c.Aside + o.Aside, c.Running + o.Running, c.Dead + o.Dead}
}

// Divided is a Store whose jobs are partly on this bridge's own disk.
type Divided interface {
	// Local returns what the disk alone holds, also while the shared store cannot
	// be reached; to all other ids its answer is "unknown".
	Local() Index
}
