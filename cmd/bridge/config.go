package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/failover"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
)

// The stores by the names of the key "store".
const (
	storeRedis = "redis"
	storeLocal = "local"
)

// config is the configuration as the program uses it.
type config struct {
	file   string
	nats   natsConfig
	bridge adapter.Config

	store         string
	redisURL      string
	redisAccess   redisAccess
	redisShards   int
	dataDir       string
	localMaxJobs  int
	localMaxBytes int64
	failover      failover.Thresholds
	dedupWindow   time.Duration
	taskTTL       time.Duration
	heartbeatTTL  time.Duration

	tracing   tracingConfig
	http      httpConfig
	logLevel  slog.Level
	logFormat string
	api       apiConfig

	values source // what was in force for each key, defaults left out
}

// natsConfig is how to reach NATS.
type natsConfig struct {
	urls                       []string
	user, password, token      string
	passwordFile               string // read for each connection
	creds, nkey, ca, cert, key string // files
	tlsFirst                   bool
	inboxPrefix                string
	context                    string // of the nats command line
}

// value is what one source gives for a key.
type value struct {
	items []string
	from  string // for errors: the flag, the variable, or file and line
}

// source holds values by key name.
type source map[string]value

// registerKeys makes flags of ks; what they are set to is in the source once
// they have been parsed.
func registerKeys(fs *flag.FlagSet, ks []*key) source {
	src := source{}
	for _, k := range ks {
		fs.Var(&keyFlag{k: k, src: src}, k.flag(), k.help)
	}
	return src
}

// keyFlag is the flag of one key. A list can be given in several flags.
type keyFlag struct {
	k   *key
	src source
}

func (f *keyFlag) String() string {
	if f.k == nil {
		return ""
	}
	return cmp.Or(f.k.def, f.k.defHelp)
}

func (f *keyFlag) Set(s string) error {
	v := value{split(f.k, s), "--" + f.k.flag()}
	if f.k.list {
		v.items = append(f.src[f.k.name].items, v.items...)
	}
	f.src[f.k.name] = v
	return nil
}

// split takes the text of a flag or variable apart, if k is a list.
func split(k *key, s string) []string {
	if !k.list {
		return []string{s}
	}
	var items []string
	for _, item := range strings.Split(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// serviceLinks are the variables that Kubernetes sets in every container for
// a service called delaybridge or delaybridge-something.
var serviceLinks = regexp.MustCompile(`^DELAYBRIDGE_(.*_)?(SERVICE_(HOST|PORT.*)|PORT|PORT_.*)$`)

// envSource reads the environment. An empty variable counts as none. Unknown
// ones with the program's prefix are errors.
func envSource(environ []string) (source, []error) {
	src := source{}
	var errs []error
	set := func(k *key, name, text string) {
		if text != "" {
			src[k.name] = value{split(k, text), name}
		}
	}
	vars := map[string]string{}
	known := map[string]bool{}
	for _, kv := range environ {
		name, text, _ := strings.Cut(kv, "=")
		vars[name] = text
	}
	for _, k := range keys {
		known[k.env()] = true
		if k.envAlso != "" {
			set(k, k.envAlso, vars[k.envAlso])
		}
		set(k, k.env(), vars[k.env()])
	}
	for name := range vars {
		if strings.HasPrefix(name, envPrefix) && !known[name] && !serviceLinks.MatchString(name) {
			errs = append(errs, fmt.Errorf("environment variable %s: no such key", name))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return src, errs
}

// loadConfig reads all sources, of which flags are the first to count, then the
// environment, the file, and the defaults. The error names everything that is
// wrong.
func loadConfig(flags source, environ []string) (config, error) {
	env, errs := envSource(environ)
	sources := []source{flags, env}
	var c config
	if v := pick(sources, "config"); len(v.items) == 1 && v.items[0] != "" {
		fromFile, err := fileSource(v.items[0])
		sources = append(sources, fromFile)
		errs = append(errs, err...)
	}
	sources, wrong := withContext(sources, environ, false)
	errs = append(errs, wrong...)
	errs = append(errs, c.apply(keys, sources)...)
	errs = append(errs, c.finish()...)
	if len(errs) > 0 {
		return config{}, &inputError{err: fmt.Errorf("configuration:\n%w", errors.Join(errs...))}
	}
	return c, nil
}

// loadProducerConfig reads the keys of commands that only talk to NATS; the selected
// context of the nats command line counts for them, a bridge must not follow it.
func loadProducerConfig(flags source, environ []string) (config, error) {
	env, _ := envSource(environ)
	var c config
	sources, errs := withContext([]source{flags, env}, environ, true)
	errs = append(errs, c.apply(producerKeys(), sources)...)
	errs = append(errs, c.checkNATS()...)
	if c.bridge.Prefix != "" { // else it is reported already
		if err := subjects.CheckPrefix(c.bridge.Prefix); err != nil {
			errs = append(errs, fmt.Errorf("prefix: %w", err))
		}
	}
	if len(errs) > 0 {
		return config{}, &inputError{err: errors.Join(errs...)}
	}
	return c, nil
}

// pick returns the value of the first source that has one.
func pick(sources []source, name string) value {
	for _, s := range sources {
		if v, ok := s[name]; ok {
			return v
		}
	}
	return value{}
}

// apply sets every key of ks from the sources or its default.
func (c *config) apply(ks []*key, sources []source) (errs []error) {
	c.values = source{}
	for _, k := range ks {
		v := pick(sources, k.name)
		if v.from == "" && k.def != "" {
			v = value{split(k, k.def), "default"}
		}
		if v.from == "" {
			continue
		}
		c.values[k.name] = v
		if err := k.set(c, v.items); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", k.name, v.from, err))
		}
	}
	return errs
}

// finish sets what follows from other values, and checks what concerns several
// of them.
func (c *config) finish() (errs []error) {
	if c.bridge.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("id: not given, and the host name cannot be read: %w", err))
		}
		c.bridge.ID = subjects.BridgeID(host)
	}
	switch {
	case c.store == storeRedis && len(c.values["redis.url"].items) == 0:
		errs = append(errs, errors.New("store: redis needs redis.url; set it, or use the local store"))
	case c.store == "" && c.redisURL != "":
		c.store = storeRedis
	case c.store == "":
		c.store = storeLocal
	}
	errs = append(errs, c.finishLocal()...)
	if c.redisShards > job.MaxShards {
		errs = append(errs, fmt.Errorf("redis.shards: %d is more than %d", c.redisShards, job.MaxShards))
	}
	errs = append(errs, c.checkNATS()...)
	errs = append(errs, c.checkWorkers()...)
	errs = append(errs, c.checkRedis()...)
	errs = append(errs, c.http.check()...)
	if err := c.failover.Validate(); err != nil {
		errs = append(errs, err)
	}
	check := c.bridge
	check.Journal = adapter.AlwaysOnDisk // what the store can do is known only when it is open
	if err := check.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// finishLocal sets what depends on which store there is, and checks the
// directory.
func (c *config) finishLocal() (errs []error) {
	if c.localMaxJobs == 0 {
		c.localMaxJobs = 1_000_000
		if c.store == storeRedis {
			c.localMaxJobs = 10_000
		}
	}
	if c.dataDir != "" {
		return nil
	}
	if c.store == storeRedis {
		errs = append(errs, errors.New("data_dir: must not be empty with Redis: jobs are held there while Redis is away"))
	}
	if c.bridge.JournalAll {
		errs = append(errs, errors.New("durability: local needs data_dir"))
	}
	return errs
}

// checkNATS checks how to reach NATS.
func (c *config) checkNATS() (errs []error) {
	if (c.nats.cert == "") != (c.nats.key == "") {
		errs = append(errs, errors.New("nats.cert, nats.key: one is set without the other"))
	}
	if c.nats.password != "" && c.nats.user == "" {
		errs = append(errs, errors.New("nats.password: set without nats.user"))
	}
	if c.nats.token != "" && c.nats.user != "" {
		errs = append(errs, errors.New("nats.token, nats.user: set one of them"))
	}
	if c.nats.passwordFile != "" && (c.nats.password+c.nats.token != "" || strings.Contains(c.nats.url(), "@")) {
		errs = append(errs, errors.New("nats.password_file: set it without nats.password, nats.token and a user in nats.url"))
	}
	return errs
}

// changed returns the names of the keys whose values differ between c and
// next.
func (c *config) changed(next *config) (names []string) {
	for _, k := range keys {
		if !slices.Equal(c.values[k.name].items, next.values[k.name].items) {
			names = append(names, k.name)
		}
	}
	return names
}
