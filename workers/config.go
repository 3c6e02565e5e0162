package workers

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/delaybridge/delaybridge/subjects"
)

// Config says what a worker does. Only Subjects must be set.
type Config struct {
	// Queue is the queue group that all workers of the same jobs share; empty:
	// DefaultQueue.
	Queue string
	// Subjects are the targets whose jobs the worker runs. Wildcards are
	// allowed.
	Subjects []string
	// Concurrency is how many handlers run at once, at most MaxConcurrency;
	// zero: as many as Go runs threads.
	Concurrency int
	// Name tells the worker apart from all others, of the same process too: 1
	// to 64 letters, digits, _ and -. Empty: the host's name and a random
	// suffix.
	Name string
	// Prefix begins the bridges' subjects; empty: DefaultPrefix.
	Prefix string
	// Heartbeat is the time between two heartbeats, at least 20 ms; zero: 2 s.
	// They are more frequent while jobs with short ack waits are here. Bridges
	// take a worker for dead after 6 s without one, unless configured
	// otherwise.
	Heartbeat time.Duration
	// Drain is how long handlers may go on after Run was told to stop; then
	// their contexts are cancelled. Zero: 30 s; negative: not at all.
	Drain time.Duration
	// Timeout is how long one handler may run before its context is cancelled;
	// zero: no limit.
	Timeout time.Duration
	// Logger gets what an operator should know; nil: slog.Default. A job that
	// succeeds or fails is not logged: see Logging.
	Logger *slog.Logger
	// Middleware wraps the handler, the first one outermost.
	Middleware []Middleware
	// Propagator reads and writes the trace context of messages; nil: W3C trace
	// context and baggage.
	Propagator propagation.TextMapPropagator
	// OnLost is called when a job is no longer the worker's: its lease ran out,
	// for instance because the process stood still, or its outcome was refused.
	// It must return soon: no answer of a bridge is read meanwhile.
	OnLost func(j *Job, err error)
}

// Defaults and limits of Config.
const (
	DefaultQueue   = "workers"
	DefaultPrefix  = "delay"
	MaxConcurrency = 4096

	defaultHeartbeat = 2 * time.Second
	defaultDrain     = 30 * time.Second
	minHeartbeat     = 20 * time.Millisecond
	suffixLen        = 12
	maxName          = 64
)

// withDefaults returns c with its zero values replaced, or what is wrong.
func (c Config) withDefaults() (Config, error) {
	c.Subjects = append([]string(nil), c.Subjects...)
	if c.Queue == "" {
		c.Queue = DefaultQueue
	}
	if c.Concurrency == 0 {
		c.Concurrency = runtime.GOMAXPROCS(0)
	}
	if c.Name == "" {
		c.Name = uniqueName()
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Drain == 0 {
		c.Drain = defaultDrain
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	return c, c.check()
}

func (c *Config) check() error {
	_, patternErr := subjects.NewMatcher(c.Subjects)
	err := errors.Join(patternErr, subjects.CheckWorkerID(c.Name), subjects.CheckPrefix(c.Prefix))
	switch {
	case err != nil:
		return err
	case len(c.Subjects) == 0:
		return errors.New("no Subjects: name the targets whose jobs the worker runs")
	case strings.ContainsAny(c.Queue, " \t\r\n"):
		return fmt.Errorf("queue %q: a queue group has no white space", c.Queue)
	case c.Concurrency < 0 || c.Concurrency > MaxConcurrency:
		return fmt.Errorf("concurrency %d: want 1 to %d", c.Concurrency, MaxConcurrency)
	case c.Heartbeat < minHeartbeat:
		return fmt.Errorf("heartbeat %v: want at least %v", c.Heartbeat, minHeartbeat)
	case c.Timeout < 0:
		return fmt.Errorf("timeout %v: want 0, for none, or more", c.Timeout)
	}
	for _, s := range c.Subjects {
		// With a token for each wildcard it must be a target.
		if err := subjects.CheckTarget(c.Prefix, strings.NewReplacer("*", "x", ">", "x").Replace(s)); err != nil {
			return fmt.Errorf("subject %q covers no job: %w", s, err)
		}
	}
	return nil
}

// uniqueName makes a worker's name of the host's.
func uniqueName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "worker"
	}
	host = subjects.BridgeID(host)
	return host[:min(len(host), maxName-suffixLen-1)] + "-" + strings.ToLower(rand.Text()[:suffixLen])
}
