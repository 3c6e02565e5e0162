// Package failpoint names the points at which a test may end the process as
// kill -9 does: between two steps of a dispatch, where a crash leaves the most
// behind.
//
//	failpoint.At(failpoint.Leased)
//
// Nothing is armed, and At is an empty function, in a program that was built
// without the tag failpoint: released ones are. With the tag, the environment
// variable FAILPOINT arms one point for the life of the process:
//
//	FAILPOINT=leased     the first time that the process comes there
//	FAILPOINT=leased:3   the third time
//
// A name that is none, or a number below 1, ends the process at its start.
package failpoint

// Point is a point between two steps.
type Point string

// The points of a bridge, in the order of a dispatch.
const (
	Leased    Point = "leased"     // a claim has returned; nothing of it is published
	Published Point = "published"  // a delivery is published; its owner is not told
	OwnerTold Point = "owner-told" // the owner is told
	AckTaken  Point = "ack-taken"  // a settlement has come; the store is not told
	Settled   Point = "settled"    // the store has it; nobody is answered
)

// The points of a worker, in the order of a job.
const (
	Received  Point = "received"  // a job has come; the handler has not been called
	Handled   Point = "handled"   // the handler has returned; no completion is sent
	Completed Point = "completed" // the completion is sent; no answer has come
)

// Bridge and Worker are all points of either, in order.
var (
	Bridge = []Point{Leased, Published, OwnerTold, AckTaken, Settled}
	Worker = []Point{Received, Handled, Completed}
)
