// Package redisdelay is a job.Store on Redis 7.0 or later.
package redisdelay
