package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/workers"
	"github.com/nats-io/nats.go"
)

// Each permission of a bridge is needed: without it the bridge says which subject to
// allow.
func TestBridgeWithOnePermissionLess(t *testing.T) {
	t.Parallel()
	s, trials := newTrials(t, func(role string) bool { return role == bridgeRole })
	redis := testredis.Start(t)
	for group := range slices.Chunk(trials, 6) { // they mostly wait, so several run at once
		begun := make([]*bridgeTrial, len(group))
		for i, tr := range group {
			begun[i] = s.beginBridge(tr, redis.URL())
		}
		for _, b := range begun {
			t.Run(b.String(), b.finish)
		}
	}
}

// Each permission of a producer, worker or operator is needed: without it their
// connection, or the worker's log, says which subject to allow.
func TestClientsWithOnePermissionLess(t *testing.T) {
	t.Parallel()
	s, trials := newTrials(t, func(role string) bool { return role != bridgeRole })
	s.try(newNotes(), "main", "bridge", "--store", "local", "--data-dir", "")(t)
	t.Run("each", func(t *testing.T) { // ends before the bridge
		for _, tr := range trials {
			if roles[tr.role] == nil {
				t.Errorf("%s has a role %s that nobody tries", securityDoc, tr.role)
				continue
			}
			t.Run(tr.String(), func(t *testing.T) {
				t.Parallel()
				(&system{Checker: s.Checker, t: t, nats: s.nats}).tryClient(tr)
			})
		}
	})
}

// newTrials starts a server with the users of the roles that are wanted, each of whom
// lacks a permission.
func newTrials(t *testing.T, wanted func(role string) bool) (*system, []trial) {
	t.Helper()
	sets := documentedSets(t)
	full := sets[bridgeRole]
	maps.DeleteFunc(sets, func(role string, _ permissions) bool { return !wanted(role) })
	accts, trials := trialsOf(sets, full)
	return &system{Checker: NewChecker(), t: t, dir: t.TempDir(), nats: testnats.Start(t, testnats.Config(accounts(accts)))}, trials
}

// trial is one set that lacks a permission, with the user who has it.
type trial struct {
	lacking
	user   string
	name   string // of a worker
	target string
}

// trialsOf returns the accounts of all trials, and these. A bridge has an account of
// its own, others use one together.
func trialsOf(sets map[string]permissions, bridge permissions) (map[string]account, []trial) {
	together := account{"bridge": bridge, "all": all}
	accts := map[string]account{"MAIN": together}
	var out []trial
	for role, full := range sets {
		for _, l := range oneLess(role, full) {
			id := fmt.Sprintf("%s%d", strings.ToLower(role), len(out))
			tr := trial{lacking: l, user: id, target: "orders." + id, name: "w1"}
			if role == bridgeRole {
				accts[id] = account{id: l.permissions, id + "-all": all, id + "-peer": full}
				out = append(out, tr)
				continue
			}
			if role == owningRole {
				tr.name = id
				tr.permitted = strings.Replace(l.permitted, ".w1", "."+id, 1)
				for _, list := range []*[]string{&tr.Publish, &tr.Subscribe} {
					*list = slices.Clone(*list)
					for i, p := range *list {
						(*list)[i] = strings.Replace(p, ".w1", "."+id, 1)
					}
				}
			}
			together[id] = tr.permissions
			out = append(out, tr)
		}
	}
	return accts, out
}

// tryClient plays a role that lacks a permission until somebody is told.
func (s *system) tryClient(tr trial) {
	n := newNotes()
	ctx, stop := context.WithCancel(context.Background())
	inbox := "orders"
	if tr.role == readerRole || tr.role == adminRole {
		inbox = "operators"
	}
	ended := make(chan struct{})
	nc := s.user(n, tr.user, tr.user, inbox)
	go func() {
		defer close(ended)
		roles[tr.role](ctx, nc, tr, n)
	}()
	defer func() { nc.Close(); stop(); <-ended }()
	jobs := s.user(n, "all", "all", "all")
	if _, err := jobs.Request("delay.in.0s."+tr.target, []byte("job"), patient); err != nil {
		s.t.Fatal(err)
	}
	if tr.permitted == "delay.bye."+tr.name {
		n.await(s.t, "that the job is done", func(line string) bool { return strings.Contains(line, "handled") })
		stop()
	}
	n.await(s.t, "that names "+tr.permitted, tr.names)
}

// roles use every permission that a role has. They return when all is done or ctx
// is.
var roles = map[string]func(ctx context.Context, nc *nats.Conn, tr trial, n *notes){
	producerRole:  playProducer,
	plainRole:     playPlain,
	answeringRole: playAnswering,
	owningRole:    playOwning,
	readerRole:    playOperator("get", "list", "stats", "workers", "bridges", "config"),
	adminRole:     playOperator("cancel", "pause.orders.x"),
}

func playProducer(_ context.Context, nc *nats.Conn, tr trial, n *notes) {
	inbox := nc.NewInbox()
	_, err := nc.SubscribeSync(inbox)
	for _, subject := range []string{"delay.in.1h.", "delay.at.4102444800.", "delay.to.", "delay.api.get."} {
		err = errors.Join(err, nc.PublishRequest(subject+tr.target, inbox, nil))
	}
	n.note(errors.Join(err, nc.Flush()))
}

func playPlain(_ context.Context, nc *nats.Conn, tr trial, n *notes) {
	_, err := nc.QueueSubscribe(tr.target, "workers", func(m *nats.Msg) {
		n.note(m.AckSync(nats.AckWait(time.Second)))
	})
	n.note(errors.Join(err, nc.Flush()))
}

func playAnswering(_ context.Context, nc *nats.Conn, tr trial, n *notes) {
	_, err := nc.QueueSubscribe(tr.target, "workers", func(m *nats.Msg) {
		n.note(m.InProgress())
		n.note(m.AckSync(nats.AckWait(time.Second)))
	})
	n.note(errors.Join(err, nc.Flush()))
}

func playOwning(ctx context.Context, nc *nats.Conn, tr trial, n *notes) {
	cfg := workers.Config{Name: tr.name, Subjects: []string{tr.target}, Concurrency: 1, Drain: -1,
		Heartbeat: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(n, nil))}
	w, err := workers.New(nc, cfg, func(context.Context, *workers.Job) error { n.add("handled"); return nil })
	if err == nil {
		err = w.Run(ctx)
	}
	n.note(err)
}

func playOperator(verbs ...string) func(context.Context, *nats.Conn, trial, *notes) {
	return func(_ context.Context, nc *nats.Conn, _ trial, n *notes) {
		inbox := nc.NewInbox()
		_, err := nc.SubscribeSync(inbox)
		_, err2 := nc.SubscribeSync("delay.event.>")
		err = errors.Join(err, err2, nc.PublishRequest("$SRV.PING.delaybridge", inbox, nil))
		for _, verb := range verbs {
			err = errors.Join(err, nc.PublishRequest("delay.api."+verb, inbox, nil))
		}
		n.note(errors.Join(err, nc.Flush()))
	}
}

// note adds what went wrong.
func (n *notes) note(err error) {
	if err != nil {
		n.add("%v", err)
	}
}

// try starts the program, which may end by itself, as a user of NATS whose password
// is his name. It returns a function that waits until the bridge is ready or has
// ended.
func (s *system) try(n *notes, id, user string, flags ...string) (settled func(*testing.T)) {
	s.t.Helper()
	args := append([]string{"serve", "--nats-url", s.nats.URL(), "--nats-user", user, "--nats-password", user, "--id", id, "--http-addr", "off", "--drain", "1s"}, flags...)
	cmd := exec.Command(program, args...)
	cmd.Env = childEnv("", 1)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a test process that is killed
	logged, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatalf("start %s: %v", program, err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(logged); lines.Scan(); {
			n.add("%s: %s", id, lines.Text())
		}
		_ = cmd.Wait() // its state does not matter
		n.add("%s: exited", id)
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-exited
	})
	return func(t *testing.T) {
		t.Helper()
		n.await(t, "that the bridge is ready", func(line string) bool {
			return strings.HasPrefix(line, id+": ") && (strings.Contains(line, "msg=ready") || strings.HasSuffix(line, ": exited"))
		})
	}
}

// bridgeTrial is a bridge that lacks a permission.
type bridgeTrial struct {
	trial
	s       *system
	notes   *notes
	settled func(*testing.T)
}

// beginBridge starts a bridge that lacks a permission.
func (s *system) beginBridge(tr trial, redisURL string) *bridgeTrial {
	s.t.Helper()
	b := &bridgeTrial{trial: tr, s: s, notes: newNotes()}
	flags := []string{"--store", "local", "--data-dir", ""}
	if tr.kind == "subscribe" && tr.permitted == "delay.owner.*" { // it listens when there is a peer
		flags = []string{"--redis-url", redisURL, "--data-dir", filepath.Join(s.dir, "b1")}
		s.try(newNotes(), "peer", tr.user+"-peer", "--redis-url", redisURL, "--data-dir", filepath.Join(s.dir, "peer"))
	}
	b.settled = s.try(b.notes, "b1", tr.user, flags...)
	return b
}

// finish makes the bridge use all permissions, until it tells of the one it lacks.
func (b *bridgeTrial) finish(t *testing.T) {
	b.settled(t)
	s := &system{Checker: b.s.Checker, t: t, nats: b.s.nats}
	all := b.user + "-all"
	nc := s.user(newNotes(), all, all, "all")
	// A worker that owns its jobs, a target without workers, an event, and answers.
	inbox, respond := nc.NewInbox(), func(m *nats.Msg) { _ = m.Respond(nil) }
	_, err := nc.Subscribe("delay.ping.w1", respond)
	_, err2 := nc.Subscribe("delay.job.w1", respond)
	err = errors.Join(err, err2,
		nc.PublishRequest("delay.hb.w1", inbox, []byte(`{"worker":"w1","queue":"workers","subjects":["orders.owned"],"capacity":1,"free":1,"directed":true}`)),
		nc.PublishRequest("delay.in.0s.orders.nobody", inbox, nil), nc.Publish("delay.in.nonsense.orders.x", nil),
		nc.PublishRequest("delay.in.0s.orders.owned", inbox, nil), nc.Flush())
	if err != nil {
		t.Fatal(err)
	}
	b.notes.await(t, "that names "+b.permitted, b.names)
}
