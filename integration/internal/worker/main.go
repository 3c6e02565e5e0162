// Worker is a worker program for tests that kill it: it runs jobs for as long as
// its flags say and reports what happens, see package report. SIGTERM stops it
// in order.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/delaybridge/delaybridge/workers"
)

// options are the flags.
type options struct {
	url, id, target string
	capacity        int
	beat            time.Duration
	work, first     time.Duration
	deaf, result    bool
}

func parse() (o options) {
	flag.StringVar(&o.url, "nats-url", nats.DefaultURL, "where the server is")
	flag.StringVar(&o.id, "id", "w", "name of the worker")
	flag.StringVar(&o.target, "target", "crew.work", "what the worker runs")
	flag.IntVar(&o.capacity, "capacity", 1, "how many jobs at once")
	flag.DurationVar(&o.beat, "beat", 0, "time between heartbeats; 0: as the library has it")
	flag.DurationVar(&o.work, "work", 0, "how long a job takes")
	flag.DurationVar(&o.first, "first", 0, "how long the first attempt of a job takes; 0: as others")
	flag.BoolVar(&o.deaf, "deaf", false, "handlers do not heed their contexts")
	flag.BoolVar(&o.result, "result", false, "the result of a job is the name of the worker")
	flag.Parse()
	return o
}

func main() {
	if err := run(parse()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// Whoever listens below answers.<id> sees what bridges answer.
	nc, err := nats.Connect(o.url, nats.Name(o.id), nats.CustomInboxPrefix("answers."+o.id), nats.MaxReconnects(-1),
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()
	w, err := workers.New(nc, workers.Config{
		Name: o.id, Subjects: []string{o.target}, Concurrency: o.capacity, Heartbeat: o.beat, Drain: 5 * time.Second,
		OnLost: func(j *workers.Job, err error) { tell(report.Lost, j, err.Error()) },
	}, o.handle)
	if err != nil {
		return err
	}
	tell(report.Ready, nil, "")
	return w.Run(ctx)
}

// handle runs a job.
func (o options) handle(ctx context.Context, j *workers.Job) error {
	tell(report.Started, j, "")
	d := o.work
	if j.Attempt == 1 && o.first > 0 {
		d = o.first
	}
	if o.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		tell(report.Stopped, j, context.Cause(ctx).Error())
		return ctx.Err()
	}
	if o.result {
		j.SetResult([]byte(o.id))
	}
	tell(report.Done, j, "")
	return nil
}

var out struct {
	sync.Mutex
	*json.Encoder
}

func init() { out.Encoder = json.NewEncoder(os.Stdout) }

// tell writes one line, with one call, so that a kill leaves none half.
func tell(event string, j *workers.Job, cause string) {
	r := report.Report{Event: event, At: time.Now().UnixMicro(), Cause: cause}
	if j != nil {
		r.Target, r.ID, r.Attempt = j.Target, j.ID, uint32(j.Attempt)
	}
	if event == report.Started {
		r.Header, r.Payload = maps.Clone(j.Header), j.Payload
		r.Header.Del("Delay-Target") // Target says it
	}
	out.Lock()
	defer out.Unlock()
	_ = out.Encode(r) // nobody reads any more
}
