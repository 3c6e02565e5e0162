package main

import (
	"slices"
	"strings"
	"time"
)

// A key is one setting. The table of them drives the flags, the environment
// variables, the configuration file and the reference in docs/.
type key struct {
	name     string // as in the file: section.key
	def      string // default, in the form that set reads; empty: none
	unit     string // of the value, for the reference
	reload   bool   // takes effect while the bridge runs
	notFile  bool   // not allowed in the configuration file
	list     bool   // takes several values, separated by commas in flags and environment
	secret   bool   // its value is never repeated in an error
	producer bool   // also a flag of commands that only talk to NATS
	envAlso  string // environment variable of the nats CLI with the same meaning
	help     string
	defHelp  string // what the default is when def cannot say it
	set      func(*config, []string) error
}

// defaultDataDir is in the working directory.
const defaultDataDir = "delaybridge-data"

const envPrefix = "DELAYBRIDGE_"

// flag is the key's command line flag, without dashes.
func (k *key) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.name) }

// env is the key's environment variable.
func (k *key) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

// keys are all settings, in the order of the reference.
var keys = []*key{
	{name: "nats.url", def: "nats://127.0.0.1:4222", unit: "URLs", list: true, producer: true, secret: true, envAlso: "NATS_URL",
		help: "NATS servers of one system; dev starts its own server at the first", set: natsURLs},
	{name: "nats.user", unit: "text", producer: true, secret: true, envAlso: "NATS_USER",
		help: "user name, or a token when there is no password", set: text(func(c *config) *string { return &c.nats.user })},
	{name: "nats.password", unit: "text", producer: true, secret: true, envAlso: "NATS_PASSWORD",
		help: "password of the user", set: text(func(c *config) *string { return &c.nats.password })},
	{name: "nats.creds", unit: "file", producer: true, envAlso: "NATS_CREDS",
		help: "credentials file with a user's JWT and seed", set: file(func(c *config) *string { return &c.nats.creds })},
	{name: "nats.nkey", unit: "file", producer: true, envAlso: "NATS_NKEY",
		help: "file with the seed of an NKey user", set: file(func(c *config) *string { return &c.nats.nkey })},
	{name: "nats.ca", unit: "file", producer: true, envAlso: "NATS_CA",
		help: "PEM certificates that the server's must be signed by; switches TLS on", set: file(func(c *config) *string { return &c.nats.ca })},
	{name: "nats.cert", unit: "file", producer: true, envAlso: "NATS_CERT",
		help: "PEM certificate to show the server", set: file(func(c *config) *string { return &c.nats.cert })},
	{name: "nats.key", unit: "file", producer: true, envAlso: "NATS_KEY",
		help: "PEM private key of the certificate", set: file(func(c *config) *string { return &c.nats.key })},
	{name: "prefix", def: "delay", unit: "subject", producer: true,
		help: "prefix of all subjects of the bridge, and of all its keys in Redis", set: required(func(c *config) *string { return &c.bridge.Prefix })},
	{name: "id", unit: "name", defHelp: "host name",
		help: "name of this bridge: 1 to 64 of A-Z a-z 0-9 _ -, its own on the NATS system, the same after a restart", set: required(func(c *config) *string { return &c.bridge.ID })},
	{name: "config", unit: "file", notFile: true,
		help: "YAML file with these keys, read again when it changes and on SIGHUP", set: text(func(c *config) *string { return &c.file })},
	{name: "store", unit: "redis or local", defHelp: "redis when redis.url is set, else local",
		help: "where jobs are held: in Redis, with data_dir for the time when that is away; or in data_dir alone", set: oneOf(func(c *config) *string { return &c.store }, storeRedis, storeLocal)},
	{name: "redis.url", unit: "URL", secret: true,
		help: "redis://[user:password@]host:port/db, or rediss:// for TLS", set: redisURL},
	{name: "redis.shards", def: "8", unit: "number",
		help: "shards that jobs are spread over; fixed once there is data", set: positive(func(c *config) *int { return &c.redisShards })},
	{name: "data_dir", def: defaultDataDir, unit: "directory",
		help: "directory of this bridge's disk store and journal, its own, the same after a restart; dev without Redis has none unless it is given, nor has the local store when it is empty: jobs are in memory then",
		set:  text(func(c *config) *string { return &c.dataDir })},
	{name: "local.max_jobs", unit: "jobs", reload: true, defHelp: "10000 with Redis, else 1000000",
		help: "jobs that the local store holds at most, dead ones included; then 429", set: positive(func(c *config) *int { return &c.localMaxJobs })},
	{name: "local.max_bytes", def: "1GiB", unit: "bytes", reload: true,
		help: "bytes that they may have, with what is noted of jobs that ended and Redis must still be told; then 429", set: bytesOf(func(c *config) *int64 { return &c.localMaxBytes })},
	{name: "durability", unit: "local", defHelp: "as each job asks",
		help: "local: every job as if it had the header Delay-Durability: local", set: durability},
	{name: "service", def: "delaybridge", unit: "text",
		help: "label of that name of the metrics about fallback", set: required(func(c *config) *string { return &c.bridge.Service })},
	{name: "dedup_window", def: "2m", unit: "duration",
		help: "how long the id of a job that ended still counts as a duplicate", set: duration(func(c *config) *time.Duration { return &c.dedupWindow })},
	{name: "jobs.max_delay", def: "3653d", unit: "duration",
		help: "farthest a due time may lie ahead (10 years)", set: duration(func(c *config) *time.Duration { return &c.bridge.MaxDelay })},
	{name: "jobs.max_attempts", def: "10", unit: "deliveries",
		help: "deliveries before a job is dead, unless it says otherwise; 0: no limit", set: maxAttempts},
	{name: "jobs.ack_wait", def: "30s", unit: "duration",
		help: "lease of a delivery, unless the job says otherwise", set: duration(func(c *config) *time.Duration { return &c.bridge.AckWait })},
	{name: "jobs.expires", def: "7d", unit: "duration",
		help: "time after due when a job is dead instead of late, unless it says otherwise", set: duration(func(c *config) *time.Duration { return &c.bridge.Expires })},
	{name: "dead.max_age", def: "30d", unit: "duration",
		help: "how long dead jobs are kept; the removed ones are counted", set: duration(func(c *config) *time.Duration { return &c.bridge.DeadMaxAge })},
	{name: "targets.allow", unit: "subject patterns", list: true, reload: true, defHelp: "all targets",
		help: "patterns, one of which a target must match", set: func(c *config, v []string) error { c.bridge.AllowTargets = v; return nil }},
	{name: "dispatch.max_in_flight", def: "1000", unit: "deliveries", reload: true,
		help: "unsettled deliveries per target at most; a change holds for targets that have had none for a minute", set: positive(func(c *config) *int { return &c.bridge.MaxInFlight })},
	{name: "dispatch.lanes", unit: "pattern=deliveries", list: true,
		help: "patterns whose targets share one ceiling of unsettled deliveries, e.g. orders.>=500", set: lanes},
	{name: "dispatch.claim_ahead", def: "100ms", unit: "duration",
		help: "how far ahead of their due time jobs are taken from the store; at most 1s", set: duration(func(c *config) *time.Duration { return &c.bridge.ClaimAhead })},
	{name: "dispatch.probe_min", def: "250ms", unit: "duration",
		help: "pause after the first probe of a target without workers", set: duration(func(c *config) *time.Duration { return &c.bridge.ProbeMin })},
	{name: "dispatch.probe_max", def: "2s", unit: "duration",
		help: "longest pause between such probes", set: duration(func(c *config) *time.Duration { return &c.bridge.ProbeMax })},
	{name: "intake.queue", def: "65536", unit: "messages",
		help: "messages that may wait to be stored; above 95 % of it for a second they go to the disk, or get 429", set: positive(func(c *config) *int { return &c.bridge.IntakeQueue })},
	{name: "store_timeout", def: "2s", unit: "duration",
		help: "bound of one call of the store", set: duration(func(c *config) *time.Duration { return &c.bridge.StoreTimeout })},
	{name: "drain", def: "10s", unit: "duration",
		help: "how long a stopping bridge serves acknowledgements when no other bridge takes them over", set: duration(func(c *config) *time.Duration { return &c.bridge.Drain })},
	{name: "http.addr", def: "127.0.0.1:8090", unit: "host:port",
		help: "where /healthz, /startupz, /readyz and /metrics are served; port 0: a free one; off or empty: nowhere", set: httpAddr},
	{name: "log.level", def: "info", unit: "debug, info, warn or error", reload: true,
		help: "least level that is logged", set: logLevel},
	{name: "log.format", def: "text", unit: "text or json",
		help: "form of the log lines", set: oneOf(func(c *config) *string { return &c.logFormat }, "text", "json")},
}

// init adds the keys that have a file of their own.
func init() {
	at := slices.IndexFunc(keys, func(k *key) bool { return k.name == "http.addr" })
	keys = slices.Insert(keys, at+1, httpKeys...)
	keys = slices.Insert(keys, at, slices.Concat(apiKeys, securityKeys)...)
	keys = slices.Insert(keys, at, slices.Concat(workerKeys, failoverKeys, tracingKeys)...)
	at = slices.IndexFunc(keys, func(k *key) bool { return k.name == "redis.shards" })
	keys = slices.Insert(keys, at, redisKeys...)
	at = slices.IndexFunc(keys, func(k *key) bool { return k.name == "prefix" })
	keys = slices.Insert(keys, at, natsKeys...)
}

// producerKeys are the keys of commands that only talk to NATS.
func producerKeys() (out []*key) {
	for _, k := range keys {
		if k.producer {
			out = append(out, k)
		}
	}
	return out
}

func keyNamed(name string) *key {
	for _, k := range keys {
		if k.name == name {
			return k
		}
	}
	return nil
}
