// Package adapter is the bridge between NATS and a [job.Store]: it takes jobs
// in, delivers them when they are due and settles what workers acknowledge.
// It knows nothing of the store behind the interface.
//
// # Flow
//
//	producer --> intake --> Put            (intake.go, parse.go, reply.go)
//	Claim --> heap --> lane --> publish    (claim.go, dispatch.go, lane.go, fire.go)
//	worker --> settler --> Settle          (settle.go, settling.go, verbs.go)
//	Expired --> retry, bury or park        (expire.go)
//
// Beside it: overload.go keeps the intake from running full, exchange.go and
// states.go tell peers whether the store is reached, degrade.go is what a store
// that goes on without Redis tells the bridge.
//
// One goroutine each stores, claims, fires, confirms publishes, takes
// acknowledgements in, settles and looks after leases, whatever the number of
// jobs; each handles what has gathered as one batch. Callbacks of the NATS client
// only append to a queue.
//
// # Guarantees
//
// A producer is answered after the store has confirmed, a worker after its
// settlement is durable. A job is published when the clock has reached its
// due time, never before. A delivery counts as made when a flush of the
// connection has been answered; until then a lost connection retries it. A
// settlement that does not name the present delivery changes nothing.
package adapter
