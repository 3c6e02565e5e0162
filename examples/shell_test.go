package examples_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestShell runs the scripts of examples/shell. NATS_CLI names a `nats` to run
// them with; without it this program stands in, for that one takes minutes to
// build.
func TestShell(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Abs("shell")
	if err != nil {
		t.Fatal(err)
	}
	b, url := bridge(t)
	run := func(name string, args ...string) *process {
		return startCommand(t, exec.Command(filepath.Join(scripts, name), args...), "NATS_URL="+url, standInEnv+"=1",
			"PATH="+natsDir(t)+":"+os.Getenv("PATH"))
	}
	worker := run("work.sh", "orders.remind")
	producer := run("produce.sh", "orders.remind")
	producer.says(`"id":"order-18","due":.*"stored":"memory"`, `"id":"order-18","result":"done"`, `"id":"year-2030","due":"2030-01-01T`, `"id":"year-2030","result":"done"`)
	producer.ends()
	worker.says(`^order 17$`, `^order 18$`)
	// What remind.sh cannot do is to be tried again.
	start(t, url, "bridge", "put", "--id", "no-order", "orders.remind", "payment").ends()
	worker.says(`^payment$`)
	b.says(`msg="worker refused a job" id=no-order .*reason="cannot remind of it"`)

	reminders, err := os.ReadFile(filepath.Join(worker.cmd.Dir, "reminders.log"))
	if want := "reminded of order 17\nreminded of order 18\n"; err != nil || string(reminders) != want {
		t.Errorf("reminders.log: %q, %v, want %q", reminders, err, want)
	}
	refused := run("produce.sh", "orders.*")
	refused.says(`"err_code":10190`)
	<-refused.done
	if code := refused.cmd.ProcessState.ExitCode(); code != 1 || len(refused.lines) > 3 {
		t.Errorf("exit %d after a refused job, %q", code, refused.lines)
	}
}

// standInEnv makes this program a `nats`.
const standInEnv = "EXAMPLES_TEST_IS_NATS"

// natsDir returns a directory with a program `nats`.
func natsDir(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(cmp.Or(os.Getenv("NATS_CLI"), self), filepath.Join(dir, "nats")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// standIn does what the scripts ask of `nats`, v0.5.0, and refuses all else.
func standIn(args []string) error {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	switch {
	case len(args) >= 4 && args[0] == "request" && args[1] == "--raw":
		return standInRequest(nc, args[2], args[3], args[4:])
	case len(args) == 6 && args[0] == "reply" && args[1] == "--queue" && args[4] == "--command":
		return standInReply(nc, args[3], args[2], args[5])
	}
	return fmt.Errorf("the stand-in for nats does not know %q", args)
}

func standInRequest(nc *nats.Conn, subject, body string, flags []string) error {
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for ; len(flags) > 0; flags = flags[2:] {
		if flags[0] != "-H" || len(flags) == 1 {
			return fmt.Errorf("the stand-in for nats does not know %q", flags)
		}
		name, value, _ := strings.Cut(flags[1], ":")
		m.Header.Add(name, value)
	}
	answer, err := nc.RequestMsg(m, patience)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", answer.Data)
	return nil
}

func standInReply(nc *nats.Conn, subject, queue, command string) error {
	sub, err := nc.QueueSubscribeSync(subject, queue)
	if err != nil {
		return err
	}
	for {
		m, err := sub.NextMsg(time.Hour)
		if err != nil {
			return err
		}
		cmd := exec.Command(command)
		cmd.Env = append(os.Environ(), "NATS_REQUEST_SUBJECT="+m.Subject, "NATS_REQUEST_BODY="+string(m.Data))
		out, err := cmd.CombinedOutput()
		fmt.Printf("%s\n", m.Data)
		if err != nil {
			out = nil // an exit status is not answered
		}
		if err := errors.Join(m.Respond(out), nc.Flush()); err != nil {
			return err
		}
	}
}
