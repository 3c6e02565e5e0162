package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/redisdelay"
)

const (
	redisTimeout = 2 * time.Second
	slowRedis    = 10 * time.Millisecond
	// So many pings tell, or what of them a slow Redis answers in that time: the
	// other checks want some, too.
	pings    = 50
	pingTime = 2 * time.Second
	// The failover takes Redis for gone after pings of this length.
	hangingRedis = 200 * time.Millisecond
	clockWarning = 500 * time.Millisecond
)

func (d *doctor) lookAtRedis(ctx context.Context) {
	o, err := redisdelay.ClientOptions(d.cfg.redisURL, redisTimeout)
	if err == nil {
		err = d.cfg.redisAccess.adapt(o)
	}
	if err != nil {
		d.bad("redis.connection", err.Error(), "jobs are held on this bridge's disk meanwhile", "correct the key")
		return
	}
	c := redis.NewClient(o)
	defer c.Close()
	if !d.redisConnection(ctx, c, o) {
		return
	}
	facts := factsOf(ctx, c)
	d.assessRedis(facts)
	d.redisWrite(ctx, c)
	d.redisClock(ctx, c)
	d.redisLayout(ctx, c)
	d.redisCommands(ctx, c)
}

// redisConnection reports whether Redis answers.
func (d *doctor) redisConnection(ctx context.Context, c *redis.Client, o *redis.Options) bool {
	var trips []time.Duration
	for end := time.Now().Add(pingTime); len(trips) < 2 || len(trips) < pings && time.Now().Before(end); {
		began := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			d.bad("redis.connection", fmt.Sprintf("%s: %v", o.Addr, err), "jobs are held on each bridge's disk meanwhile, up to local.max_jobs", adviceFor(err, o))
			return false
		}
		trips = append(trips, time.Since(began))
	}
	median, worst := medianAndWorst(trips[1:]) // the first one connects
	seen := fmt.Sprintf("%s, PING %s (worst of %d: %s)", o.Addr, short(median), len(trips)-1, short(worst))
	switch {
	case worst >= hangingRedis:
		d.warn("redis.connection", seen, "three probes in a row of 200 ms make the bridge do without Redis", "look for slow commands (SLOWLOG GET), forks and swapping: LATENCY DOCTOR")
	case median >= slowRedis:
		d.warn("redis.connection", seen, "each batch of jobs waits for it several times", "run the bridge near Redis")
	default:
		d.ok("redis.connection", seen)
	}
	switch {
	case o.TLSConfig != nil:
		d.ok("redis.tls", "on")
	case o.Password+d.cfg.redisAccess.passwordFile != "" && !isLoopback(o.Addr):
		d.warn("redis.tls", "off, and a password is sent", "whoever sees the network can read it and all jobs", "use rediss:// and redis.ca")
	default:
		d.info("redis.tls", "off", "")
	}
	return true
}

// adviceFor says what to do about a Redis that does not let one in.
func adviceFor(err error, o *redis.Options) string {
	text := err.Error()
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case isLoginProblem(text):
		return "check redis.user and redis.password (or what the URL says)"
	case has("NOPERM"):
		return "allow the user +ping" + map[bool]string{true: " +select"}[o.DB > 0]
	case has("tls:"), has("x509:"), has("certificate"):
		return "check redis.ca, redis.cert and redis.key, and that redis.url begins with rediss:// just when Redis wants TLS"
	case has("EOF"), has("reset by peer"):
		return "if Redis wants TLS here, begin redis.url with rediss://"
	case has("LOADING"):
		return "wait until Redis has loaded its data"
	}
	return "start Redis there, or correct redis.url"
}

// isLoginProblem reports whether an error is Redis' answer to wrong credentials.
func isLoginProblem(text string) bool {
	for _, s := range []string{"NOAUTH", "WRONGPASS", "invalid username-password", "without any password configured"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// redisWrite writes what the bridge's own probe writes.
func (d *doctor) redisWrite(ctx context.Context, c *redis.Client) {
	began := time.Now()
	err := c.Set(ctx, d.cfg.bridge.Prefix+":canary:doctor", began.UnixMicro(), time.Minute).Err()
	took := time.Since(began)
	switch {
	case err != nil:
		d.bad("redis.write", err.Error(), "jobs cannot be stored in Redis: they are held on each bridge's disk", writeAdvice(err))
	case took >= hangingRedis:
		d.warn("redis.write", "a canary took "+short(took), "the bridge takes Redis for gone when it takes 200 ms", "look at the disk below the append-only file, and at LATENCY DOCTOR")
	default:
		d.ok("redis.write", "a canary took "+short(took))
	}
}

func writeAdvice(err error) string {
	word, _, _ := strings.Cut(err.Error(), " ")
	switch word {
	case "READONLY":
		return "this is a replica: let redis.url name the master"
	case "NOREPLICAS":
		return "start the replicas that min-replicas-to-write asks for, or lower it"
	case "OOM":
		return "raise maxmemory, or remove what else is in this Redis"
	case "MISCONF":
		return "Redis cannot save to its disk: see its log, make room there"
	case "NOPERM":
		return "allow the user +set on the keys of the prefix"
	}
	return "see the log of Redis"
}

func (d *doctor) redisClock(ctx context.Context, c *redis.Client) {
	best, offset := time.Duration(0), time.Duration(0)
	for i := range 5 {
		sent := time.Now()
		t, err := c.Time(ctx).Result()
		if err != nil {
			d.info("redis.clock", "not known: "+err.Error(), "compare date on both machines")
			return
		}
		if took := time.Since(sent); i == 0 || took < best {
			best, offset = took, t.Sub(sent.Add(took/2))
		}
	}
	seen := fmt.Sprintf("%s %s this machine (give or take %s)", short(offset.Abs()), map[bool]string{true: "behind", false: "ahead of"}[offset < 0], short(best/2))
	if offset.Abs() <= best/2 {
		seen = fmt.Sprintf("that of this machine (give or take %s)", short(best/2))
	}
	if offset.Abs() >= clockWarning {
		d.warn("redis.clock", seen, "bridges follow the clock of Redis, so jobs are that much early or late by all others", "run a time service (chrony, systemd-timesyncd) on both machines")
		return
	}
	d.ok("redis.clock", seen)
}

func (d *doctor) redisLayout(ctx context.Context, c *redis.Client) {
	prefix, shards := d.cfg.bridge.Prefix, d.cfg.redisShards
	l, err := redisdelay.ReadLayout(ctx, c, prefix)
	switch {
	case err != nil:
		d.info("redis.data", "not known: "+err.Error(), "")
	case l.Version == 0:
		d.info("redis.data", fmt.Sprintf("none yet under the prefix %s", prefix), "")
	case l.Version > redisdelay.FormatVersion:
		d.bad("redis.data", fmt.Sprintf("has format %d, this program knows %d", l.Version, redisdelay.FormatVersion), "this bridge refuses to start", "use a newer release, or another prefix")
	case l.Shards != shards:
		d.bad("redis.data", fmt.Sprintf("has %d shards, redis.shards is %d", l.Shards, shards), "this bridge refuses to start", fmt.Sprintf("set redis.shards to %d", l.Shards))
	default:
		d.ok("redis.data", fmt.Sprintf("format %d, %d shards, as configured", l.Version, l.Shards))
	}
}

// aclScript asks for each command whether the user may run it on a key, without
// running it.
const aclScript = `#!lua flags=no-writes,allow-stale
local refused = {}
for i, command in ipairs(ARGV) do
  local words = {}
  for w in string.gmatch(command, '[^|]+') do words[#words + 1] = w end
  if #words == 1 then
    local extra = {KEYS[1], '1', 'm', '1', 'm'}
    if command == 'time' or command == 'ping' or command == 'info' then extra = {} end
    if command == 'del' or command == 'unlink' or command == 'exists' then extra = {KEYS[1]} end
    if command == 'evalsha' or command == 'eval' then extra = {'0123456789012345678901234567890123456789', '1', KEYS[1]} end
    for _, a in ipairs(extra) do words[#words + 1] = a end
  else
    words[#words + 1] = 'x'
  end
  local ok, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if ok and not allowed then refused[#refused + 1] = command end
end
return refused`

// redisCommands finds out which commands an ACL refuses.
func (d *doctor) redisCommands(ctx context.Context, c *redis.Client) {
	refused, err := refusedCommands(ctx, c, d.cfg.bridge.Prefix)
	switch {
	case err != nil && strings.Contains(err.Error(), "NOPERM"):
		d.bad("redis.acl", err.Error(), "nothing works without scripts", "allow the user "+aclRule(d.cfg.bridge.Prefix, []string{"script|load", "evalsha"}))
	case err != nil:
		d.info("redis.acl", "not known: "+err.Error(), fmt.Sprintf("ACL GETUSER shows what the user may; it needs %s", aclRule(d.cfg.bridge.Prefix, redisdelay.Commands())))
	case len(refused) > 0:
		d.bad("redis.acl", "refused, or not on the keys "+d.cfg.bridge.Prefix+":*: "+strings.Join(refused, " "), "the bridge uses these commands, some of them in scripts",
			"ACL SETUSER <user> "+aclRule(d.cfg.bridge.Prefix, refused))
	default:
		d.ok("redis.acl", fmt.Sprintf("all %d commands of a bridge are allowed", len(redisdelay.Commands())))
	}
}

func aclRule(prefix string, commands []string) string {
	return "~" + prefix + ":* +" + strings.Join(commands, " +")
}

func refusedCommands(ctx context.Context, c *redis.Client, prefix string) ([]string, error) {
	sha, err := c.ScriptLoad(ctx, aclScript).Result()
	if err != nil {
		return nil, fmt.Errorf("SCRIPT LOAD: %w", err)
	}
	var args []any
	for _, name := range redisdelay.Commands() {
		args = append(args, name)
	}
	refused, err := c.EvalSha(ctx, sha, []string{prefix + ":{0}:doctor"}, args...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("EVALSHA: %w", err)
	}
	return refused, nil
}

// redisFacts are what INFO and CONFIG GET say; what they refuse is absent.
type redisFacts struct {
	info     map[string]string
	settings map[string]string
	err      error // of INFO
}

// redisSettings are looked at with CONFIG GET.
var redisSettings = []string{
	"appendfsync", "save", "maxmemory-policy", "no-appendfsync-on-rewrite",
	"min-replicas-to-write", "repl-backlog-size", "repl-timeout",
}

func factsOf(ctx context.Context, c *redis.Client) redisFacts {
	f := redisFacts{settings: map[string]string{}}
	text, err := c.Info(ctx).Result()
	f.info, f.err = parseRedisInfo(text), err
	for _, name := range redisSettings {
		v, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			continue
		}
		if value, ok := v[name]; ok {
			f.settings[name] = value
		}
	}
	return f
}

func parseRedisInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[k] = v
		}
	}
	return info
}

// number of INFO; zero: absent.
func (f *redisFacts) number(name string) int64 {
	n, _ := strconv.ParseInt(f.info[name], 10, 64)
	return n
}

// setting of CONFIG GET as a number.
func (f *redisFacts) setting(name string) (int64, bool) {
	n, err := strconv.ParseInt(f.settings[name], 10, 64)
	return n, err == nil
}

var errNoInfo = errors.New("INFO says nothing")
