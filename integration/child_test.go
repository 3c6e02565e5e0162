package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/failpoint"
)

var httpField = regexp.MustCompile(`http://[^ ]+`)

// child is a bridge in a process of its own.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended and all it logged was read
	http   string        // address of its HTTP server
	warned []string      // lines that it logged above info; to be read once it has exited
}

// child starts the program on the system's servers and returns when it is
// ready.
func (s *system) child(id string, flags ...string) *child {
	s.t.Helper()
	return s.armed("", 1, id, flags...)
}

// armed is child of a bridge that ends as kill -9 does when it comes to the
// point for the nth time; an empty point is none.
func (s *system) armed(p failpoint.Point, nth int, id string, flags ...string) *child {
	s.t.Helper()
	args := append([]string{"serve", "--redis-url", s.url, "--id", id, "--http-addr", "off", "--data-dir", filepath.Join(s.dir, id)}, flags...)
	if !slices.Contains(flags, "--nats-url") { // several would be servers of one cluster
		args = append(args, "--nats-url", s.nats.URL())
	}
	c := &child{t: s.t, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	c.cmd.Env = append(childEnv(p, nth), s.env...)
	// It must not outlive a test process that is killed.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	logged, err := c.cmd.StderrPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		s.t.Fatalf("start %s: %v", program, err)
	}
	ready := make(chan struct{})
	go func() {
		defer close(c.exited)
		for lines, open := bufio.NewScanner(logged), true; lines.Scan(); {
			s.logged(id, lines.Text())
			if !strings.Contains(lines.Text(), "level=INFO") {
				c.warned = append(c.warned, lines.Text())
			}
			if open && strings.Contains(lines.Text(), "msg=ready") {
				c.http = httpField.FindString(lines.Text())
				close(ready)
				open = false
			}
		}
		_ = c.cmd.Wait() // its state tells how it ended
	}()
	s.t.Cleanup(c.kill)
	select {
	case <-ready:
	case <-c.exited:
		s.t.Fatalf("bridge %s ended before it was ready: %v", id, c.cmd.ProcessState)
	case <-time.After(patient):
		s.t.Fatalf("bridge %s not ready within %v", id, patient)
	}
	return c
}

// childEnv is the environment of a child that is armed, or not. It configures a
// bridge, too, which knows no DELAYBRIDGE_SOAK.
func childEnv(p failpoint.Point, nth int) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DELAYBRIDGE_") })
	if p == "" {
		return env
	}
	return append(env, fmt.Sprintf("FAILPOINT=%s:%d", p, nth))
}

// kill ends the process as kill -9 does; it may have ended.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.exited
}

// terminate is end, which must also be nothing to warn of.
func (c *child) terminate() time.Duration {
	c.t.Helper()
	took := c.end()
	if len(c.warned) > 0 {
		c.t.Errorf("bridge warned: %q", c.warned)
	}
	return took
}

// end asks the process to stop and returns how long it took. That must succeed.
func (c *child) end() time.Duration {
	c.t.Helper()
	start := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-c.exited:
	case <-time.After(patient):
		c.t.Fatalf("bridge did not end within %v of SIGTERM", patient)
	}
	if !c.cmd.ProcessState.Success() {
		c.t.Errorf("bridge ended with %v after SIGTERM", c.cmd.ProcessState)
	}
	return time.Since(start)
}

// logged shows what a child logs, or writes it to the file that
// DELAYBRIDGE_SOAK_LOG names.
func (s *system) logged(id, line string) {
	if soakLog == nil {
		s.t.Logf("%s: %s", id, line)
		return
	}
	fmt.Fprintf(soakLog, "%s: %s\n", id, line)
}
