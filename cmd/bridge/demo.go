package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/delaybridge/delaybridge/client"
)

const (
	// demoDeadline bounds the demo; it needs less than ten seconds.
	demoDeadline = 25 * time.Second
	// demoLease is how soon a killed worker's job goes to another one.
	demoLease = 2 * time.Second
	// killAfter is how long the killed worker holds its job.
	killAfter = 200 * time.Millisecond
	// The job whose worker is killed, and how long it takes.
	killedJob  = "long"
	killedWork = "1s"
)

// demoJobs are the delays of the jobs by id, in the order of scheduling.
var demoJobs = []struct {
	id, work string
	delay    time.Duration
}{
	{"third", "20ms", 1500 * time.Millisecond},
	{"first", "20ms", 500 * time.Millisecond},
	{"second", "20ms", time.Second},
	{killedJob, killedWork, 2 * time.Second},
	{"fifth", "20ms", 2500 * time.Millisecond},
	{"sixth", "20ms", 3 * time.Second},
}

// demo is one run: a bridge, two workers, a producer, and what was seen.
type demo struct {
	std     stdio
	began   time.Time
	workers map[string]*child
	events  chan workerEvent
	jobs    map[string]*demoJob
	killed  string // the worker that was
}

type demoJob struct {
	due        time.Time
	deliveries int
	late       time.Duration // of the first delivery
	done       bool
}

type workerEvent struct {
	worker string
	demoEvent
}

func runDemo(ctx context.Context, c *command, std stdio, args []string) (err error) {
	if err := parseFlags(c, newFlags(c), std, args, 0); err != nil {
		return err
	}
	log := newLogger(std.err, slog.LevelError, "text")
	ctx, stop := untilSignal(ctx, log)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	d := &demo{std: std, workers: map[string]*child{}, events: make(chan workerEvent), jobs: map[string]*demoJob{}}
	srv, err := startNATS("nats://127.0.0.1:0", "", "")
	if err != nil {
		return err
	}
	defer stopNATS(srv)
	bridge, err := startDemoBridge(ctx, srv, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bridge.stop()) }()
	defer d.stopWorkers()
	if err := d.run(ctx, srv.ClientURL()); err != nil {
		return err
	}
	return d.summary()
}

// demoBridge is a bridge that runs in this process.
type demoBridge struct {
	cancel func()
	ended  chan error
}

func startDemoBridge(ctx context.Context, srv *server.Server, log *slog.Logger) (*demoBridge, error) {
	load := func() (config, error) {
		return loadConfig(source{
			"nats.url":  {[]string{srv.ClientURL()}, "demo"},
			"http.addr": {[]string{"off"}, "demo"},
			"id":        {[]string{"demo"}, "demo"},
			"store":     {[]string{storeLocal}, "demo"},
			"data_dir":  {[]string{""}, "demo"},
		}, nil)
	}
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	s := &bridgeServer{load: load, cfg: cfg, level: new(slog.LevelVar), log: log, registry: prometheus.NewRegistry(),
		onReady: func(*bridgeServer) { close(ready) }}
	// The demo's deadline must not end the bridge before its workers.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b := &demoBridge{cancel: cancel, ended: make(chan error, 1)}
	go func() { b.ended <- s.run(ctx) }()
	select {
	case <-ready:
		return b, nil
	case err := <-b.ended:
		cancel()
		return nil, err
	}
}

func (b *demoBridge) stop() error {
	b.cancel()
	return <-b.ended
}

// run shows everything until each job is done.
func (d *demo) run(ctx context.Context, url string) error {
	fmt.Fprintf(d.std.out, "NATS at %s, a bridge with jobs in memory, two plain queue workers\n\n", url)
	for _, name := range []string{"A", "B"} {
		if err := d.startWorker(name, url); err != nil {
			return err
		}
	}
	for range d.workers {
		if _, err := d.next(ctx); err != nil {
			return fmt.Errorf("workers do not start: %w", err)
		}
	}
	d.began = time.Now()
	if err := d.schedule(ctx, url); err != nil {
		return err
	}
	for !d.allDone() {
		e, err := d.next(ctx)
		if err != nil {
			d.line(time.Now(), "gave up: %v", err)
			return nil // the summary says what is missing
		}
		d.show(ctx, e)
	}
	return nil
}

func (d *demo) startWorker(name, url string) error {
	w, err := startChild(d.std, "demo-worker", "--nats-url", url)
	if err != nil {
		return err
	}
	d.workers[name] = w
	go func() {
		for line := range w.lines {
			e := workerEvent{worker: name}
			if json.Unmarshal([]byte(line), &e.demoEvent) == nil {
				d.events <- e
			}
		}
	}()
	return nil
}

func (d *demo) stopWorkers() {
	for _, w := range d.workers {
		_ = w.stdin.Close() // closed already when it was killed
		for ended := false; !ended; {
			select {
			case <-d.events: // nobody looks any more
			case <-w.done:
				ended = true
			}
		}
	}
}

func (d *demo) next(ctx context.Context) (workerEvent, error) {
	select {
	case e := <-d.events:
		return e, nil
	case <-ctx.Done():
		return workerEvent{}, ctx.Err()
	}
}

// schedule puts all jobs.
func (d *demo) schedule(ctx context.Context, url string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(nc, client.Options{})
	if err != nil {
		return err
	}
	for _, j := range demoJobs {
		header := nats.Header{"Delay-Ack-Wait": {demoLease.String()}, "Delay-Backoff": {"100ms"}}
		r, err := c.Schedule(ctx, client.Job{ID: j.id, Target: demoTarget, Payload: []byte(j.work), Header: header}, j.delay)
		if err != nil {
			return fmt.Errorf("schedule %s: %w", j.id, err)
		}
		d.jobs[j.id] = &demoJob{due: r.Due}
		d.line(time.Now(), "scheduled  %-7s in %-5v due %s  stored: %s", j.id, j.delay, r.Due.Local().Format(clockLayout), r.Stored)
	}
	fmt.Fprintln(d.std.out)
	return nil
}

const clockLayout = "15:04:05.000000"

// line prints what happened at t.
func (d *demo) line(t time.Time, format string, args ...any) {
	fmt.Fprintf(d.std.out, "%6.3fs  %s\n", t.Sub(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// show prints what a worker did, and kills the one that begins the job for it.
func (d *demo) show(ctx context.Context, e workerEvent) {
	j := d.jobs[e.ID]
	if j == nil {
		return
	}
	switch e.Event {
	case "done":
		j.done = true
		d.line(e.At, "done       %-7s attempt %s by worker %s", e.ID, e.Attempt, e.worker)
	case "start":
		j.deliveries++
		late := e.At.Sub(j.due)
		if j.deliveries == 1 {
			j.late = late
		}
		d.line(e.At, "delivered  %-7s attempt %s to worker %s  at %s  due %s  late by %v",
			e.ID, e.Attempt, e.worker, e.At.Format(clockLayout), j.due.Local().Format(clockLayout), late.Round(10*time.Microsecond))
		if e.ID == killedJob && d.killed == "" {
			d.kill(ctx, e.worker)
		}
	}
}

// kill ends the worker in the midst of its job.
func (d *demo) kill(ctx context.Context, worker string) {
	d.killed = worker
	w := d.workers[worker]
	time.AfterFunc(killAfter, func() { _ = w.cmd.Process.Kill() }) // fails only when it has ended
	for ended := false; !ended; {
		select {
		case e := <-d.events:
			d.show(ctx, e)
		case <-w.done:
			ended = true
		case <-ctx.Done():
			ended = true
		}
	}
	d.line(time.Now(), "KILLED     worker %s (SIGKILL) while it held %s: its lease of %v must run out", worker, killedJob, demoLease)
}

func (d *demo) allDone() bool {
	for _, j := range d.jobs {
		if !j.done {
			return false
		}
	}
	return true
}

// summary prints the totals, and fails when they are not what is promised.
func (d *demo) summary() error {
	lost, early, again, worst := 0, 0, 0, time.Duration(0)
	for _, j := range d.jobs {
		worst = max(worst, j.late)
		if !j.done {
			lost++
		}
		if j.late < 0 {
			early++
		}
		if j.deliveries > 1 {
			again++
		}
	}
	fmt.Fprintf(d.std.out, "\n%d scheduled, %d done, %d lost, %d early, %d delivered again after a worker was killed; worst lateness of a first delivery %v\n",
		len(d.jobs), len(d.jobs)-lost, lost, early, again, worst.Round(10*time.Microsecond))
	if lost+early > 0 || again != 1 {
		return errors.New("demo: not what a bridge promises; please report it with the lines above")
	}
	return nil
}
