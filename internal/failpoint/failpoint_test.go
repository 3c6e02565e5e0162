package failpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAt(t *testing.T) {
	t.Parallel()
	armed, released := build(t, "failpoint"), build(t, "")
	for _, c := range []struct {
		name, program, armed, printed string
		killed                        bool
	}{
		{"first time", armed, "received", "0\n", true},
		{"second time", armed, "received:2", "0\n1\n", true},
		{"another point", armed, "handled", "0\n1\n2\n", false},
		{"too late", armed, "received:4", "0\n1\n2\n", false},
		{"nothing armed", armed, "", "0\n1\n2\n", false},
		{"released", released, "received", "0\n1\n2\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(c.program)
			cmd.Env = append(os.Environ(), "FAILPOINT="+c.armed)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if string(out) != c.printed || killed != c.killed || !killed && err != nil {
				t.Errorf("printed %q and ended with %v; want %q, killed: %v", out, err, c.printed, c.killed)
			}
		})
	}
}

func TestUnknownPoint(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(build(t, "failpoint"))
	cmd.Env = append(os.Environ(), "FAILPOINT=nowhere")
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a program with an unknown point ran: %q", out)
	}
}

// build returns a program that passes the point received three times.
func build(t *testing.T, tags string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "walk")
	build := exec.Command("go", "build", "-tags", tags, "-o", bin, "./testdata/walk")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released; the race detector has cgo
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}
