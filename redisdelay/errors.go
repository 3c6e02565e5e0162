package redisdelay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// permanentError is an error that waiting does not mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(format string, args ...any) error { return permanentError{fmt.Errorf(format, args...)} }

// Permanent reports whether an error of Open stays until somebody changes the
// configuration, of the bridge or of Redis: not valid, another layout of the
// data, a version that is too old, eviction, credentials. All others pass when
// Redis can be reached and takes writes again.
func Permanent(err error) bool {
	var p permanentError
	if errors.As(err, &p) {
		return true
	}
	var reply redis.Error
	return errors.As(err, &reply) && !passingReply(reply)
}

// Refused reports whether err is Redis' answer that it cannot take the call now,
// although it can be reached: it is out of memory, cannot write to its disk,
// loads its data, is a replica, or lacks replicas.
func Refused(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && hasPrefix(reply, refusals)
}

// refusals are the beginnings of such answers; passingReplies those of others
// that go away by themselves.
var (
	refusals       = []string{"OOM ", "MISCONF ", "LOADING ", "READONLY ", "NOREPLICAS ", "MASTERDOWN ", "CLUSTERDOWN "}
	passingReplies = []string{"TRYAGAIN", "BUSY ", "UNBLOCKED", "NOSCRIPT", "ERR max number of clients"}
)

// passing reports whether err is one that goes away by itself.
func passing(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, errReply) || errors.Is(err, errStale) {
		return false
	}
	var reply redis.Error
	return !errors.As(err, &reply) || passingReply(reply)
}

func passingReply(reply redis.Error) bool {
	return hasPrefix(reply, refusals) || hasPrefix(reply, passingReplies)
}

func hasPrefix(reply redis.Error, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(reply.Error(), p) {
			return true
		}
	}
	return false
}
