// Package admin answers operators over NATS: the micro service "delaybridge", with
// the messages of package api on <prefix>.api.<verb>.
//
// A verb that concerns jobs has a target form too, <prefix>.api.<verb>.<target>,
// which acts on the jobs of exactly that target: to it all others are unknown, so
// that the permission to publish there gives nothing away.
//
// All bridges of a prefix answer in one queue group. Jobs that only the disk of
// another bridge holds are asked for there, on <prefix>.sys.api.<bridge>: only when
// the own store cannot tell, and always for lists.
//
// An answer is definite. Where a store, or a bridge that may hold the job, cannot be
// reached it is 503/20503, never "unknown".
//
// # Calls
//
// Calls of one subject are begun in the order they come. One that takes long does
// not hold up those behind it; at most [maxCalls] run, and beyond them the answer is
// 429. A call is given up after Options.Timeout. A purge works for [purgeShare] of
// that, then says where to go on.
package admin
