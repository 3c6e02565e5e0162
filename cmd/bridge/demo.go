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
	demoDeadline = 15 * time.Second
	// The job whose worker is killed, how long it takes, and how long its worker
	// has it by then.
	killedJob  = "long"
	killedWork = "2s"
	killAfter  = 800 * time.Millisecond
)

// demoJobs are the delays of the jobs by id, in the order of scheduling. None is
// due after the kill: one that is sent to the killed worker would betray it.
var demoJobs = []struct {
	id, work string
	delay    time.Duration
}{
	{"third", "20ms", 1500 * time.Millisecond},
	{"first", "20ms", 500 * time.Millisecond},
	{"second", "20ms", time.Second},
	{killedJob, killedWork, 2 * time.Second},
	{"fifth", "20ms", 2250 * time.Millisecond},
	{"sixth", "20ms", 2500 * time.Millisecond},
}

// demo is one run: a bridge, two workers, a producer, and what was seen.
type demo struct {
	std     stdio
	began   time.Time
	workers map[string]*child
	events  chan workerEvent
	jobs    map[string]*demoJob

	kill     <-chan time.Time // when a worker is to be killed; nil: not now
	killed   string           // the worker that is or was
	killedAt time.Time
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
	fmt.Fprintf(d.std.out, "NATS at %s, a bridge with jobs in memory, two workers that own their jobs\n\n", url)
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(demoResults, d.result); err != nil {
		return err
	}
	if err := d.startWorkers(ctx, nc, "w1", "w2"); err != nil {
		return fmt.Errorf("workers do not start: %w", err)
	}
	d.began = time.Now()
	if err := d.schedule(ctx, nc); err != nil {
		return err
	}
	for !d.allDone() {
		select {
		case e := <-d.events:
			d.show(e)
		case <-d.kill:
			d.killWorker()
		case <-ctx.Done():
			d.line(time.Now(), "gave up: %v", ctx.Err())
			return nil // the summary says what is missing
		}
	}
	return nil
}

// startWorkers starts the workers and waits for a heartbeat of each.
func (d *demo) startWorkers(ctx context.Context, nc *nats.Conn, names ...string) error {
	for _, name := range names {
		sub, err := nc.SubscribeSync(client.DefaultPrefix + ".hb." + name)
		if err != nil {
			return err
		}
		if err := d.startWorker(name, nc.ConnectedUrl()); err != nil {
			return err
		}
		if _, err := sub.NextMsgWithContext(ctx); err != nil {
			return err
		}
		_ = sub.Unsubscribe() // fails only when the connection is closed
	}
	return nil
}

func (d *demo) startWorker(name, url string) error {
	w, err := startChild(d.std, "demo-worker", "--nats-url", url, "--name", name)
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

// result takes what a worker has made of a job. The bridge sends it when it has
// stored that the job is done.
func (d *demo) result(m *nats.Msg) {
	var e workerEvent
	if json.Unmarshal(m.Data, &e.demoEvent) == nil {
		e.worker, e.At = e.Worker, time.Now()
		d.events <- e
	}
}

// schedule puts all jobs.
func (d *demo) schedule(ctx context.Context, nc *nats.Conn) error {
	c, err := client.New(nc, client.Options{})
	if err != nil {
		return err
	}
	for _, j := range demoJobs {
		header := nats.Header{"Delay-Reply-To": {demoResults}}
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

// show prints what a worker did, and has it killed when it begins the job for it.
func (d *demo) show(e workerEvent) {
	j := d.jobs[e.ID]
	if j == nil {
		return
	}
	switch e.Event {
	case "done":
		j.done = true
		d.line(e.At, "done       %-7s attempt %d by %s", e.ID, e.Attempt, e.worker)
	case "start":
		d.started(e, j)
	}
}

func (d *demo) started(e workerEvent, j *demoJob) {
	j.deliveries++
	late := e.At.Sub(j.due)
	d.line(e.At, "delivered  %-7s attempt %d to %s  at %s  due %s  late by %v",
		e.ID, e.Attempt, e.worker, e.At.Format(clockLayout), j.due.Local().Format(clockLayout), late.Round(10*time.Microsecond))
	if j.deliveries == 1 {
		j.late = late
	}
	switch {
	case e.ID != killedJob:
	case d.killed == "":
		d.killed, d.kill = e.worker, time.After(killAfter)
	case !d.killedAt.IsZero():
		d.line(e.At, "%s has it %d ms after the kill; without heartbeats it would have waited for the lease: %g s",
			e.worker, e.At.Sub(d.killedAt).Milliseconds(), e.Lease)
	}
}

// killWorker ends the worker in the midst of its job.
func (d *demo) killWorker() {
	d.kill = nil
	d.line(time.Now(), "KILL       %s (SIGKILL) while it runs %s", d.killed, killedJob)
	d.killedAt = time.Now()
	_ = d.workers[d.killed].cmd.Process.Kill() // fails only when it has ended
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
