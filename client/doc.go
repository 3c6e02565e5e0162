// Package client schedules and manages delayed jobs from Go programs.
//
//	nc, err := nats.Connect(url)
//	c, err := client.New(nc, client.Options{})
//	r, err := c.Schedule(ctx, client.Job{Target: "orders.expire", Payload: body}, 15*time.Minute)
//
// A job is published to <prefix>.to.<target>, so permission to publish there
// is all that a producer needs. A nil error means that a bridge holds the job
// where [Receipt].Stored says. [Client.ScheduleMany] does many at once.
//
// The other methods ask on <prefix>.api.<verb>, or, with [Client.ForTarget], on
// <prefix>.api.<verb>.<target>; the messages are in package api. What changes a job
// answers definitely: it was done, or the job is running, has finished, or is
// unknown.
//
// # Errors
//
// A refusal by the bridge is an [*Error] with the codes of the wire. When no
// bridge listens the error is [ErrNoBridge], when NATS does not allow the subject a
// [*PermissionError]. Every other error, a deadline that passed among them, leaves
// open whether the job was stored, or changed: schedule it again under the same ID,
// which stores it at most once.
//
// # Traces
//
// The trace context of the call is written into the headers of the job, so the
// bridge and the workers continue the trace; see [Options].Propagator.
//
// A Client is safe for concurrent use and owns nothing: closing the connection
// is up to the caller.
package client
