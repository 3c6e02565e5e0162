package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/client"
)

// anyNumber of arguments.
const anyNumber = math.MaxInt

// call is the command line of a command that asks a bridge.
type call struct {
	c       *command
	std     stdio
	fs      *flag.FlagSet
	flags   source
	asJSON  bool
	scope   string
	timeout time.Duration
	dashes  bool // -- stands before the arguments, which may begin with - then
}

// newCall returns a call of c with the flags that all of them have.
func newCall(c *command, std stdio) *call {
	k := &call{c: c, std: std, fs: newFlags(c)}
	k.flags = registerKeys(k.fs, producerKeys())
	k.fs.Var(&keyFlag{k: keyNamed("nats.context"), src: k.flags}, "context", "the same as --nats-context")
	k.fs.BoolVar(&k.asJSON, "json", false, "print JSON")
	k.fs.DurationVar(&k.timeout, "timeout", 5*time.Second, "`duration` to wait for an answer; the environment variable NATS_TIMEOUT says so too")
	return k
}

// scoped adds the flag for users that may manage one target alone.
func (k *call) scoped() {
	k.fs.StringVar(&k.scope, "scope", "", "ask on the subjects of this `target` alone, for users that may use no others")
}

// parse parses args, of which least to most arguments must be left over.
func (k *call) parse(args []string, least, most int) error {
	if err := parseArguments(k.c, k.fs, k.std, args, least, most); err != nil {
		return err
	}
	before := len(args) - k.fs.NArg() - 1
	k.dashes = before >= 0 && args[before] == "--"
	if late := lateFlag(k.fs); late != "" && most == anyNumber && !k.dashes {
		return badUsage(k.c, lateError(late))
	}
	if k.timeout <= 0 {
		return badUsage(k.c, fmt.Errorf("--timeout: %v is not more than 0", k.timeout))
	}
	v := contextHome{k.std.env}.variable("NATS_TIMEOUT")
	if v == "" || isSet(k.fs, "timeout") {
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return badUsage(k.c, fmt.Errorf("NATS_TIMEOUT: %q is not a duration like 5s", v))
	}
	k.timeout = d
	return nil
}

// isSet reports whether a flag was set.
func isSet(fs *flag.FlagSet, name string) (found bool) {
	fs.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// session is a call with its connection.
type session struct {
	*call
	cfg config
	nc  *nats.Conn
	*client.Client
}

// with connects, runs f and closes the connection.
func (k *call) with(f func(*session) error) error {
	cfg, err := loadProducerConfig(k.flags, k.std.env)
	if err != nil {
		return badUsage(k.c, err)
	}
	s := &session{call: k, cfg: cfg}
	if s.nc, err = cfg.nats.dial(program+"/"+k.c.name, nats.ErrorHandler(ignoreAsync),
		nats.MaxReconnects(-1), nats.ReconnectWait(connectPause)); err != nil {
		return err
	}
	defer s.nc.Close()
	s.Client, err = client.New(s.nc, client.Options{Prefix: cfg.bridge.Prefix, Timeout: k.timeout})
	if err == nil && k.scope != "" {
		s.Client, err = s.ForTarget(k.scope)
	}
	if err != nil {
		return badUsage(k.c, err)
	}
	return s.explain(f(s))
}

// ignoreAsync keeps nats.go from printing errors that the client returns.
func ignoreAsync(*nats.Conn, *nats.Subscription, error) {}

// explain says which command line would have helped.
func (s *session) explain(err error) error {
	if errors.Is(err, client.ErrNoBridge) {
		return fmt.Errorf("no bridge answers on %s with the prefix %q: start one, or set --nats-url or --prefix",
			withoutSecrets(s.cfg.nats.urls...), s.cfg.bridge.Prefix)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%v after %v: --timeout waits longer", err, s.timeout) // not %w: it is explained
	}
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("refused with %d/%d: %s", refused.Code, refused.ErrCode, refused.Description)
	}
	return err
}
