package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/nats-io/nats.go"
)

const (
	benchProducers = 64   // that wait for each answer
	benchWindow    = 4096 // answers outstanding of a pipelining producer
	benchGroup     = "bench"
	// benchIdle is how long nothing may happen before a scenario gives up.
	benchIdle = 30 * time.Second
	// drainIn is the delay of the jobs of the intake scenarios: they must not
	// be due while intake is measured.
	drainIn = 20 * time.Second
)

var benchScenarios = []string{"intake", "burst", "steady"}

// benchOptions is what the command line asks for. Numbers are bounded, so that
// a typing error does not fill somebody's Redis.
type benchOptions struct {
	jobs, rate, size int
	duration         time.Duration
	scenarios        []string
	self, asJSON     bool
}

func runBench(ctx context.Context, c *command, std stdio, args []string) (err error) {
	o, cfg, err := readBench(c, std, args)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx, newLogger(std.err, nil, "text"))
	defer stop()
	if o.self {
		system, err := startSelf(ctx, std, &cfg)
		if err != nil {
			return err
		}
		defer system.stop()
	}
	nc, err := cfg.nats.dial(program + "/bench")
	if err != nil {
		return err
	}
	defer nc.Close()
	responder, err := startResponder(std, &cfg)
	if err != nil {
		return err
	}
	defer responder.stop()
	b := &bench{std: std, o: o, nc: nc, prefix: cfg.bridge.Prefix, target: "bench." + job.NewID(0), plain: <-responder.lines,
		payload: []byte(strings.Repeat("x", o.size))}
	return b.run(ctx)
}

func readBench(c *command, std stdio, args []string) (benchOptions, config, error) {
	fs := newFlags(c)
	flags := registerKeys(fs, producerKeys())
	var o benchOptions
	fs.IntVar(&o.jobs, "jobs", 100_000, "`jobs` per scenario, up to 1000000")
	fs.IntVar(&o.rate, "rate", 1000, "`jobs` a second in the steady scenario, up to 20000")
	fs.IntVar(&o.size, "payload", 256, "`bytes` of a job's payload, up to 65536")
	fs.DurationVar(&o.duration, "duration", 10*time.Second, "how `long` the steady scenario takes, up to 10m")
	scenarios := fs.String("scenario", "all", "`names` of scenarios: "+strings.Join(benchScenarios, ", ")+", or all")
	fs.BoolVar(&o.self, "self", false, "start a NATS server, a redis-server if there is one, and a bridge of its own")
	fs.BoolVar(&o.asJSON, "json", false, "print a line of JSON per measurement")
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return o, config{}, err
	}
	cfg, err := loadProducerConfig(flags, std.env)
	if err == nil {
		err = o.check(*scenarios)
	}
	if err != nil {
		return o, cfg, badUsage(c, err)
	}
	return o, cfg, nil
}

func (o *benchOptions) check(scenarios string) error {
	within := func(name string, v, most int) error {
		if v < 1 || v > most {
			return fmt.Errorf("--%s: %d is not between 1 and %d", name, v, most)
		}
		return nil
	}
	if o.scenarios = benchScenarios; scenarios != "all" {
		o.scenarios = strings.Split(scenarios, ",")
	}
	for _, s := range o.scenarios {
		if !slices.Contains(benchScenarios, s) {
			return fmt.Errorf("--scenario: %q is none of %s", s, strings.Join(benchScenarios, ", "))
		}
	}
	return errors.Join(within("jobs", o.jobs, 1_000_000), within("rate", o.rate, 20_000), within("payload", o.size, 65_536),
		within("duration", int(o.duration/time.Second), 600))
}

// bench measures one bridge.
type bench struct {
	std            stdio
	o              benchOptions
	nc             *nats.Conn
	prefix, target string
	plain          string // where the plain responder answers
	payload        []byte
	plainRate      float64 // of the present scenario
}

// measurement is one line of results.
type measurement struct {
	Scenario string  `json:"scenario"`
	Jobs     int     `json:"jobs"`
	Rate     float64 `json:"jobs_per_second"`
	Plain    float64 `json:"request_reply_per_second"` // of plain NATS, 64 requesters, in the same scenario
	Ratio    float64 `json:"ratio"`                    // Rate to Plain
	First    float64 `json:"first_ms,omitempty"`       // burst: due to the first delivery
	P50      float64 `json:"late_p50_ms,omitempty"`
	P99      float64 `json:"late_p99_ms,omitempty"`
	Max      float64 `json:"late_max_ms,omitempty"`
	Early    int     `json:"early"`
}

func (b *bench) run(ctx context.Context) error {
	if _, err := b.nc.Request(b.prefix+".in.0s."+b.target, nil, connectTimeout); errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("no bridge answers with the prefix %q: start one, set --nats-url or --prefix, or use --self", b.prefix)
	} else if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	for _, s := range b.o.scenarios {
		if err := b.measurePlain(ctx); err != nil {
			return err
		}
		scenario := map[string]func(context.Context) error{"intake": b.intake, "burst": b.burst, "steady": b.steady}[s]
		if err := scenario(ctx); err != nil {
			return fmt.Errorf("scenario %s: %w", s, err)
		}
	}
	return nil
}

func (b *bench) report(m measurement) {
	m.Plain, m.Ratio = b.plainRate, m.Rate/b.plainRate
	if b.o.asJSON {
		_ = json.NewEncoder(b.std.out).Encode(m) // numbers and a name always encode
		return
	}
	fmt.Fprintf(b.std.out, "%-16s %8d jobs  %9.0f/s  %.2f of request-reply (%.0f/s)", m.Scenario, m.Jobs, m.Rate, m.Ratio, m.Plain)
	if m.First != 0 {
		fmt.Fprintf(b.std.out, "  first after %.2f ms", m.First)
	}
	if m.Max != 0 {
		fmt.Fprintf(b.std.out, "  late p50 %.2f p99 %.2f max %.2f ms  early %d", m.P50, m.P99, m.Max, m.Early)
	}
	fmt.Fprintln(b.std.out)
}
