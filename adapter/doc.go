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
//	heartbeats --> beats --> flights of workers   (heartbeat.go, workers.go, answers.go, ping.go)
//	leases of bridges that are gone --> flights   (reconstruct.go)
//
// Beside it: owners.go tells peers and people which worker has what, overload.go keeps the intake from running full, exchange.go and
// states.go tell peers whether the store is reached, degrade.go is what a store
// that goes on without Redis tells the bridge.
//
// One goroutine each stores, claims, fires, confirms publishes, takes
// acknowledgements in, settles and looks after leases, whatever the number of
// jobs; each handles what has gathered as one batch. Callbacks of the NATS client
// only append to a queue, or note something under a lock that nobody holds long.
//
// # Ends of a delivery
//
// A flight ends in one place, dispatcher.drop, and stays known until its
// settlement is durable. What leads there:
//
//	resolve       its worker settled it
//	finish        nobody has to: it is published
//	expire        its lease ran out
//	takeBack      it was not published, or may not have arrived
//	park, putOff  its target reached nobody
//	undelivered   its worker was not reached
//	lose          its worker is gone, or does not have it
//	lost, ended   the store says that it is over
//
// # Guarantees
//
// A producer is answered after the store has confirmed, a worker after its
// settlement is durable. A job is published when the clock has reached its
// due time, never before. A delivery counts as made when a flush of the
// connection has been answered; until then a lost connection retries it. A
// settlement that does not name the present delivery changes nothing.
package adapter
