package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

func init() {
	registry["delaybridge"] = func(o map[string]bool) System { return &bridgeSys{opts: o} }
}

var bridgeBinary = flag.String("bridge", "", "binary of the bridge (default: built from ../.. once per run)")

// bridgeSys options: none|everysec|always (redis), local (the bridge's own
// store, no redis), sync (wait for each acknowledgement) or async (window of
// 4096 outstanding over all producers), ids (producers choose the ids, 36
// characters).
type bridgeSys struct {
	opts map[string]bool
	redisServer
	nats, bridge *proc
	url          string
}

const jobTarget = "bench.jobs"

func (s *bridgeSys) Start(dir string) error {
	err := s.start(dir)
	if err != nil {
		s.Stop()
	}
	return err
}

func (s *bridgeSys) start(dir string) (err error) {
	binary, err := builtBridge()
	if err != nil {
		return err
	}
	if s.nats, s.url, err = startNATS(dir, false, false); err != nil {
		return err
	}
	args := []string{"serve", "--nats-url", s.url, "--http-addr", "127.0.0.1:0", "--id", "bench", "--data-dir", dir, "--log-format", "json"}
	if s.opts["local"] {
		args = append(args, "--store", "local")
	} else {
		r, err := startRedis(dir, s.opts)
		if err != nil {
			return err
		}
		s.redisServer = *r
		args = append(args, "--redis-url", "redis://"+s.addr)
	}
	s.bridge, err = startBridge(binary, args)
	return err
}

// Stop kills the bridge: its data is thrown away, so there is nothing to drain.
func (s *bridgeSys) Stop() {
	s.bridge.kill()
	s.nats.stop()
	s.p.stop()
}

func (s *bridgeSys) PIDs() (pids []int) {
	for _, p := range []*proc{s.p, s.nats, s.bridge} {
		if p != nil {
			pids = append(pids, p.pid())
		}
	}
	return pids
}

func (s *bridgeSys) MemUsed() (int64, error) {
	if s.p == nil {
		return 0, errors.New("no redis")
	}
	return s.redisServer.MemUsed()
}

func (s *bridgeSys) NewProducer(i, conc int) (Producer, error) {
	nc, err := nats.Connect(s.url)
	if err != nil {
		return nil, err
	}
	j := jobMaker{}
	if s.opts["ids"] {
		j.prefix = nats.NewInbox()[len(nats.InboxPrefix):] + "-"
	}
	if s.opts["sync"] {
		return &bridgeWaiter{j, nc}, nil
	}
	return newBridgePipe(j, nc, max(16, 4096/conc))
}

// jobMaker builds the messages that schedule jobs.
type jobMaker struct {
	prefix string // 23 characters that begin every id; empty: the bridge makes ids
	n      int
}

// message takes the subject form where it is exact, that is for whole
// milliseconds, and otherwise the header.
func (j *jobMaker) message(due time.Time, payload []byte) *nats.Msg {
	m := &nats.Msg{Data: payload}
	if j.prefix != "" {
		j.n++
		m.Header = nats.Header{nats.MsgIdHdr: {fmt.Sprintf("%s%013d", j.prefix, j.n)}}
	}
	if due.Nanosecond()%int(time.Millisecond) == 0 {
		m.Subject = "delay.at." + strconv.FormatInt(due.UnixMilli(), 10) + "." + jobTarget
		return m
	}
	m.Subject = "delay.to." + jobTarget
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header["Delay-At"] = []string{due.UTC().Format(time.RFC3339Nano)}
	return m
}

// refusal is the error in the bridge's reply, if it is one. The reply is
// decoded whole, as the nats client decodes a PubAck.
func refusal(reply *nats.Msg) error {
	if len(reply.Data) == 0 {
		return errors.New("no bridge takes jobs")
	}
	var ack struct {
		Stream, ID, Due, Stored string
		Seq                     uint64
		Duplicate               bool
		Error                   *struct {
			Code        int
			ErrCode     int `json:"err_code"`
			Description string
		}
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return fmt.Errorf("reply %q: %w", reply.Data, err)
	}
	if e := ack.Error; e != nil {
		return fmt.Errorf("refused: %d/%d %s", e.Code, e.ErrCode, e.Description)
	}
	if ack.ID == "" {
		return fmt.Errorf("reply %q names no job", reply.Data)
	}
	return nil
}

// bridgeWaiter is a producer that waits for each acknowledgement.
type bridgeWaiter struct {
	jobMaker
	nc *nats.Conn
}

func (p *bridgeWaiter) Enqueue(due time.Time, payload []byte, done func(error)) {
	reply, err := p.nc.RequestMsg(p.message(due, payload), 30*time.Second)
	if err == nil {
		err = refusal(reply)
	}
	done(err)
}

func (p *bridgeWaiter) Close() error { p.nc.Close(); return nil }

// bridgePipe is a producer with a window of unacknowledged jobs: each holds a
// slot, whose number is the last token of its reply subject.
type bridgePipe struct {
	jobMaker
	nc    *nats.Conn
	inbox string
	free  chan int
	mu    sync.Mutex
	slots []func(error) // nil: nothing outstanding
}

const lostAfter = 60 * time.Second

var errLostReply = fmt.Errorf("no acknowledgement in %v", lostAfter)

func newBridgePipe(j jobMaker, nc *nats.Conn, window int) (*bridgePipe, error) {
	p := &bridgePipe{jobMaker: j, nc: nc, inbox: nats.NewInbox() + ".", free: make(chan int, window), slots: make([]func(error), window)}
	for i := range window {
		p.free <- i
	}
	_, err := nc.Subscribe(p.inbox+"*", p.acknowledged)
	return p, err
}

func (p *bridgePipe) acknowledged(reply *nats.Msg) {
	slot, err := strconv.Atoi(reply.Subject[len(p.inbox):])
	if err != nil || slot < 0 || slot >= len(p.slots) {
		return
	}
	if done := p.swap(slot, nil); done != nil {
		done(refusal(reply))
		p.free <- slot
	}
}

func (p *bridgePipe) swap(slot int, done func(error)) (old func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, p.slots[slot] = p.slots[slot], done
	return old
}

func (p *bridgePipe) Enqueue(due time.Time, payload []byte, done func(error)) {
	slot, ok := p.freeSlot()
	if !ok {
		done(errLostReply)
		return
	}
	p.swap(slot, done)
	m := p.message(due, payload)
	m.Reply = p.inbox + strconv.Itoa(slot)
	if err := p.nc.PublishMsg(m); err != nil {
		p.swap(slot, nil)
		p.free <- slot
		done(err)
	}
}

func (p *bridgePipe) freeSlot() (int, bool) {
	select {
	case slot := <-p.free:
		return slot, true
	default:
	}
	select {
	case slot := <-p.free:
		return slot, true
	case <-time.After(lostAfter):
		return 0, false
	}
}

// Close waits for what is outstanding and reports what does not come as lost.
func (p *bridgePipe) Close() error {
	defer p.nc.Close()
	for range p.slots {
		if _, ok := p.freeSlot(); !ok {
			break
		}
	}
	for slot := range p.slots {
		if done := p.swap(slot, nil); done != nil {
			done(errLostReply)
		}
	}
	return nil
}

// StartWorkers starts plain queue subscribers on 4 connections, which
// acknowledge with an empty reply.
func (s *bridgeSys) StartWorkers(deliver Deliver) (func(), error) {
	conns, err := dial(s.url, 4)
	for _, nc := range conns {
		err = errors.Join(err, work(nc, deliver))
	}
	stop := func() {
		for _, nc := range conns {
			nc.Flush()
		}
		closeAll(conns)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func work(nc *nats.Conn, deliver Deliver) error {
	sub, err := nc.QueueSubscribe(jobTarget, "workers", func(m *nats.Msg) {
		deliver.payload(m.Data)
		m.Respond(nil)
	})
	if err != nil {
		return err
	}
	return errors.Join(sub.SetPendingLimits(-1, -1), nc.Flush())
}

// builtBridge is the bridge's binary.
var builtBridge = sync.OnceValues(func() (string, error) {
	if *bridgeBinary != "" {
		return filepath.Abs(*bridgeBinary)
	}
	dir, err := os.MkdirTemp("", "peers-bridge-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	file := filepath.Join(dir, "bridge")
	c := exec.Command("go", "build", "-C", filepath.Join(*scriptDir, "..", ".."), "-buildvcs=false", "-o", file, "./cmd/bridge")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the bridge: %w\n%s", err, out)
	}
	return file, nil
})

var buildDir string

// removeBridge removes what builtBridge has built.
func removeBridge() {
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
}

// startBridge returns once the bridge says that it takes jobs. Warnings and
// errors that it logs later go to our standard error: they may explain a figure.
func startBridge(binary string, args []string) (*proc, error) {
	c := exec.Command(binary, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := c.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &proc{c}
	ready := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(log)
		ready <- awaitReady(lines)
		copyWarnings(os.Stderr, lines)
	}()
	select {
	case err = <-ready:
	case <-time.After(20 * time.Second):
		err = errors.New("the bridge is not ready after 20 s")
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// logLine is a line of the bridge's JSON log.
type logLine struct{ Level, Msg string }

func parseLog(b []byte) (l logLine) {
	json.Unmarshal(b, &l) // another line is none that we look for
	return l
}

// awaitReady reads the log up to the line that says ready.
func awaitReady(log *bufio.Scanner) error {
	var seen []byte
	for log.Scan() {
		if parseLog(log.Bytes()).Msg == "ready" {
			return nil
		}
		seen = append(append(seen, log.Bytes()...), '\n')
	}
	return fmt.Errorf("the bridge ended before it was ready:\n%s", seen)
}

func copyWarnings(w io.Writer, log *bufio.Scanner) {
	for log.Scan() {
		if l := parseLog(log.Bytes()).Level; l == "WARN" || l == "ERROR" {
			fmt.Fprintf(w, "bridge: %s\n", log.Bytes())
		}
	}
}
