// Package api holds the messages of the admin API of a bridge: what is asked on
// <prefix>.api.<verb>, or <prefix>.api.<verb>.<target> for jobs of one target, and
// what is answered. Both are JSON; an empty body is {}, an unknown field an error.
//
// A refusal has the headers Nats-Service-Error-Code and Nats-Service-Error, as every
// NATS micro service, and [Failure] as its body.
package api
