package redisdelay

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// MinMajor is the oldest major version of Redis that will do; FormatVersion that of
// the layout of the data.
const (
	MinMajor      = 7
	FormatVersion = formatVersion
)

// clientCommands are what the store sends by itself, scripts aside.
var clientCommands = []string{
	"client|setname", "del", "eval", "evalsha", "getrange", "hgetall", "hlen", "hmget", "hsetnx", "info", "pexpire", "ping",
	"sadd", "script|load", "set", "smembers", "srem", "time", "zcard",
}

var scriptCall = regexp.MustCompile(`\bp?call\('([A-Za-z]+)'`)

// Commands returns the commands that a Redis user of the store must be allowed, in
// the spelling of ACL rules: those that it sends, and those that its scripts call.
// CONFIG GET is used too, where it is allowed.
func Commands() []string {
	all := slices.Clone(clientCommands)
	for _, sc := range allScripts {
		for _, m := range scriptCall.FindAllStringSubmatch(sc.source, -1) {
			all = append(all, strings.ToLower(m[1]))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Layout is the form of the data under a prefix; zeros: there is none.
type Layout struct{ Version, Shards int }

// ReadLayout reads it, and changes nothing.
func ReadLayout(ctx context.Context, c redis.Cmdable, prefix string) (Layout, error) {
	f, err := readFormat(ctx, c, formatKey(prefix))
	if err != nil {
		return Layout{}, fmt.Errorf("redisdelay: read format from %s: %w", formatKey(prefix), err)
	}
	return Layout(f), nil
}
