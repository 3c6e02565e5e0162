package redisdelay

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// formatVersion is the version of the layout in Redis.
const formatVersion = 1

// Report is what Check found of Redis.
type Report struct {
	Version         string
	RunID           string // another one after each start of Redis
	Role            string // master or slave
	Replicas        int    // connected
	AppendOnly      bool
	AppendFsync     string // empty: not known
	Snapshots       string // the "save" setting; empty: none or not known
	MaxMemory       int64  // bytes; zero: no limit
	MaxMemoryPolicy string // empty: not known
	UsedMemory      int64
	EvictedKeys     int64    // since Redis started; of any prefix
	Warnings        []string // what an operator should know
}

// Check reads Redis' version and settings. It fails when jobs would not be
// safe there: too old, or set to evict keys.
func (s *Store) Check(ctx context.Context) (Report, error) {
	pipe := s.client.Pipeline()
	info := pipe.Info(ctx)
	config := map[string]*redis.MapStringStringCmd{}
	for name := range (&Report{}).settings() {
		config[name] = pipe.ConfigGet(ctx, name)
	}
	exec(ctx, pipe)
	text, err := info.Result()
	if err != nil {
		return Report{}, fmt.Errorf("redisdelay: INFO: %w", err)
	}
	r := parseInfo(text)
	for name, to := range r.settings() {
		if v, err := config[name].Result(); err == nil && v[name] != "" { // an ACL may forbid it
			*to = v[name]
		}
	}
	return assess(r)
}

// assess adds warnings to the report, or refuses.
func assess(r Report) (Report, error) {
	if r.TooOld() {
		return r, permanent("redisdelay: Redis %s is too old: version 7.0 or later is needed", r.Version)
	}
	if p := r.MaxMemoryPolicy; p != "" && p != "noeviction" {
		return r, permanent("redisdelay: Redis may evict jobs: maxmemory-policy is %s; set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)", p)
	}
	if r.MaxMemoryPolicy == "" {
		r.warn("maxmemory-policy not known: make sure that it is noeviction")
	}
	if !r.AppendOnly {
		r.warn("appendonly is off: jobs since the last snapshot are lost when Redis stops")
	} else if r.AppendFsync == "no" {
		r.warn("appendfsync is no: how much is lost on a power failure is up to the operating system")
	}
	return r, nil
}

// TooOld reports whether Redis lacks what the store needs.
func (r Report) TooOld() bool {
	major, _ := strconv.Atoi(strings.SplitN(r.Version, ".", 2)[0])
	return major < 7
}

func (r *Report) warn(text string) { r.Warnings = append(r.Warnings, text) }

func parseInfo(info string) Report {
	f := map[string]string{}
	for sc := bufio.NewScanner(strings.NewReader(info)); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok {
			f[k] = v
		}
	}
	r := Report{
		Version: f["redis_version"], RunID: f["run_id"], Role: f["role"], AppendOnly: f["aof_enabled"] == "1",
		MaxMemoryPolicy: f["maxmemory_policy"],
	}
	r.Replicas, _ = strconv.Atoi(f["connected_slaves"])
	r.EvictedKeys, _ = strconv.ParseInt(f["evicted_keys"], 10, 64)
	r.UsedMemory, _ = strconv.ParseInt(f["used_memory"], 10, 64)
	r.MaxMemory, _ = strconv.ParseInt(f["maxmemory"], 10, 64)
	return r
}

// settings are what only CONFIG tells.
func (r *Report) settings() map[string]*string {
	return map[string]*string{"appendfsync": &r.AppendFsync, "save": &r.Snapshots, "maxmemory-policy": &r.MaxMemoryPolicy}
}

// format is what the format key says; zeros: nothing.
type format struct {
	Version int `redis:"version"`
	Shards  int `redis:"shards"`
}

// checkFormat makes sure that the data in Redis has this layout, and claims
// the prefix for it where there is none. It writes only then, so that it works
// with a Redis that takes no writes.
func (s *Store) checkFormat(ctx context.Context, c redis.Cmdable) error {
	key := formatKey(s.opts.Prefix)
	has, err := readFormat(ctx, c, key)
	if err == nil && (has.Version == 0 || has.Shards == 0) {
		pipe := c.Pipeline()
		pipe.HSetNX(ctx, key, "version", formatVersion)
		pipe.HSetNX(ctx, key, "shards", s.opts.Shards)
		again := pipe.HMGet(ctx, key, "version", "shards")
		if _, err = pipe.Exec(ctx); err == nil {
			err = again.Scan(&has)
		}
	}
	if err != nil {
		return fmt.Errorf("redisdelay: read format from %s: %w", key, err)
	}
	if has.Version > formatVersion {
		return permanent("redisdelay: the data under prefix %q has format %d, this program knows %d: use a newer release, or another prefix",
			s.opts.Prefix, has.Version, formatVersion)
	}
	if has.Shards != s.opts.Shards {
		return permanent("redisdelay: the data under prefix %q has %d shards, not %d: set the number of shards to %d, or use another prefix",
			s.opts.Prefix, has.Shards, s.opts.Shards, has.Shards)
	}
	return nil
}

func readFormat(ctx context.Context, c redis.Cmdable, key string) (f format, err error) {
	err = c.HMGet(ctx, key, "version", "shards").Scan(&f)
	return f, err
}
