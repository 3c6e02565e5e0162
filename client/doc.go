// Package client schedules delayed jobs from Go programs.
//
//	nc, err := nats.Connect(url)
//	c, err := client.New(nc, client.Options{})
//	r, err := c.Schedule(ctx, client.Job{Target: "orders.expire", Payload: body}, 15*time.Minute)
//
// A job is published to <prefix>.to.<target>, so permission to publish there
// is all that a producer needs. A nil error means that a bridge holds the job
// where [Receipt].Stored says.
//
// # Errors
//
// A refusal by the bridge is an [*Error] with the codes of the wire. When no
// bridge listens the error is [ErrNoBridge]. Every other error, a deadline
// that passed among them, leaves open whether the job was stored: schedule it
// again under the same ID, which stores it at most once.
//
// A Client is safe for concurrent use and owns nothing: closing the connection
// is up to the caller.
package client
