package job

// Mode says which store a bridge works with.
type Mode int32

// The modes of a bridge whose store can fail; docs/failover.md.
const (
	ModeRedis     Mode = iota // Redis has the jobs
	ModeLocal                 // Redis cannot be reached: the bridge's own disk takes over
	ModeMigrating             // Redis is back, and takes over what the disk holds
)

// String returns redis, local or migrating.
func (m Mode) String() string { return [...]string{"redis", "local", "migrating"}[m] }

// Circuit returns the mode in the terms of a circuit breaker: CLOSED, OPEN or
// HALF_OPEN.
func (m Mode) Circuit() string { return [...]string{"CLOSED", "OPEN", "HALF_OPEN"}[m] }
