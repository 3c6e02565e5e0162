package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/integration/internal/report"
	"github.com/delaybridge/delaybridge/internal/failpoint"
)

// crew are workers in processes of their own, which own their jobs. What they
// report goes to the Checker.
type crew struct {
	s *system

	mu      sync.Mutex
	reports []report.Report
	changed chan struct{} // closed at the next report
	open    map[slot]Delivery
	// What is known of the completions of deliveries.
	tokens    map[string]report.Report // their starts
	confirmed map[slot]bool
}

// slot is a delivery at a worker.
type slot struct {
	worker, id string
	attempt    uint32
}

func slotOf(r report.Report) slot { return slot{r.Worker, r.ID, r.Attempt} }

func newCrew(s *system) *crew {
	s.t.Helper()
	c := &crew{s: s, changed: make(chan struct{}), open: map[slot]Delivery{}, tokens: map[string]report.Report{}, confirmed: map[slot]bool{}}
	nc := s.client()
	_, err := nc.Subscribe("answers.>", c.hear)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// hand is one worker of a crew.
type hand struct {
	t      *testing.T
	id     string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended and all it reported was read
}

// crewTarget is what the workers of a crew run unless they are told otherwise.
const crewTarget = "crew.work"

// join starts a worker and returns when a bridge knows of it.
func (c *crew) join(id string, flags ...string) *hand {
	c.s.t.Helper()
	return c.armed("", 1, id, flags...)
}

// armed is join of a worker that ends as kill -9 does when it comes to the point
// for the nth time.
func (c *crew) armed(p failpoint.Point, nth int, id string, flags ...string) *hand {
	c.s.t.Helper()
	args := append([]string{"-nats-url", c.s.nats.URL(), "-id", id}, flags...)
	h := &hand{t: c.s.t, id: id, cmd: exec.Command(workerProgram, args...), exited: make(chan struct{})}
	h.cmd.Env = childEnv(p, nth)
	// It must not outlive a test process that is killed.
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reports, err := h.cmd.StdoutPipe()
	if err != nil {
		c.s.t.Fatal(err)
	}
	logged, err := h.cmd.StderrPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		c.s.t.Fatalf("start %s: %v", workerProgram, err)
	}
	go func() {
		defer close(h.exited)
		var reading sync.WaitGroup
		reading.Go(func() {
			for lines := bufio.NewScanner(logged); lines.Scan(); {
				c.s.logged(id, lines.Text())
			}
		})
		c.read(h, json.NewDecoder(reports))
		reading.Wait()
		_ = h.cmd.Wait() // its state tells how it ended
	}()
	c.s.t.Cleanup(h.kill)
	c.awaitReport(id+" is known", func(r report.Report) bool { return r.Event == report.Known && r.Worker == id })
	return h
}

// read takes in what h reports until it has ended.
func (c *crew) read(h *hand, from *json.Decoder) {
	for {
		r := report.Report{Worker: h.id}
		if from.Decode(&r) != nil {
			return // the last line may be half
		}
		c.add(r)
	}
}

func (c *crew) add(r report.Report) {
	c.check(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = append(c.reports, r)
	close(c.changed)
	c.changed = make(chan struct{})
}

// check tells the Checker. A worker that has said that it is done, and no more,
// may have completed the job or not.
func (c *crew) check(r report.Report) {
	at := slotOf(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Event {
	case report.Started:
		c.open[at] = c.s.Delivered(&nats.Msg{Subject: r.Target, Header: r.Header, Data: r.Payload})
		c.tokens[r.Header.Get("Delay-Token")] = r
	case report.Done:
		if !c.confirmed[at] {
			c.s.Settled(c.open[at], Unconfirmed)
		}
	case report.Confirmed:
		c.confirmed[at] = true
		c.s.Settled(c.open[at], Confirmed)
	}
}

// hear takes in what a bridge answers to a worker. The library has the answer to
// the completion of a job on <inbox>.s.<token>, that to a heartbeat on <inbox>.h.
func (c *crew) hear(m *nats.Msg) {
	if m.Header.Get("Status") != "" {
		return
	}
	if strings.HasSuffix(m.Subject, ".h") {
		c.add(report.Report{Event: report.Known, At: time.Now().UnixMicro(), Worker: strings.Split(m.Subject, ".")[1]})
		return
	}
	if len(m.Data) > 0 || !strings.Contains(m.Subject, ".s.") {
		return
	}
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	c.mu.Lock()
	r, ok := c.tokens[token]
	c.mu.Unlock()
	if !ok {
		return // the worker was killed before it could report the start
	}
	c.add(report.Report{Event: report.Confirmed, At: time.Now().UnixMicro(), ID: r.ID, Attempt: r.Attempt, Worker: r.Worker})
}

// awaitReport returns the first report that is as match says, of those that came or
// will come.
func (c *crew) awaitReport(what string, match func(report.Report) bool) report.Report {
	c.s.t.Helper()
	end := time.After(patient)
	for seen := 0; ; {
		c.mu.Lock()
		news, changed := c.reports[seen:], c.changed
		c.mu.Unlock()
		for _, r := range news {
			if match(r) {
				return r
			}
		}
		seen += len(news)
		select {
		case <-changed:
		case <-end:
			c.s.t.Fatalf("%s: not within %v; reports %v, counts %+v", what, patient, c.tail(), c.s.Counts())
		}
	}
}

// awaitStarted waits for the start of an attempt of a job.
func (c *crew) awaitStarted(id string, attempt uint32) report.Report {
	c.s.t.Helper()
	return c.awaitReport(fmt.Sprintf("attempt %d of %s", attempt, id), func(r report.Report) bool {
		return r.Event == report.Started && r.ID == id && r.Attempt == attempt
	})
}

// seen returns the reports that are as match says.
func (c *crew) seen(match func(report.Report) bool) (out []report.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if match(r) {
			out = append(out, r)
		}
	}
	return out
}

// tail is a short text of the last reports.
func (c *crew) tail() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports[max(0, len(c.reports)-20):] {
		out = append(out, fmt.Sprintf("%s %s %s %s#%d %s", r.Time().Format("05.000"), r.Worker, r.Event, r.ID, r.Attempt, r.Cause))
	}
	return out
}

// kill ends the process as kill -9 does; it may have ended.
func (h *hand) kill() {
	_ = h.cmd.Process.Kill() // it may have ended
	<-h.exited
}

// freeze stops the process where it is, thaw lets it go on.
func (h *hand) freeze() { h.signal(syscall.SIGSTOP) }
func (h *hand) thaw()   { h.signal(syscall.SIGCONT) }

func (h *hand) signal(sig syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		h.t.Fatalf("%v to worker %s: %v", sig, h.id, err)
	}
}

// end asks the worker to stop in order, and waits for it.
func (h *hand) end() {
	h.t.Helper()
	h.signal(syscall.SIGTERM)
	awaitExit(h.t, "worker "+h.id, h.exited)
	if !h.cmd.ProcessState.Success() {
		h.t.Errorf("worker %s ended with %v after SIGTERM", h.id, h.cmd.ProcessState)
	}
}

// awaitExit waits for a process that is about to end.
func awaitExit(t *testing.T, what string, exited <-chan struct{}) {
	t.Helper()
	select {
	case <-exited:
	case <-time.After(patient):
		t.Fatalf("%s did not end within %v", what, patient)
	}
}
