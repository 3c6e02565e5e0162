package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// soakLog is where the logs of children go; nil: to their tests.
var soakLog *os.File

// The programs that run as children, built for this run of the tests with
// failpoints in them: the bridge, and the worker of internal/worker.
var program, workerProgram string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "delaybridge-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program, workerProgram = filepath.Join(dir, "bridge"), filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", dir, "../cmd/bridge", "./internal/worker")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the bridge and the worker cannot be built: %v\n%s", err, out)
		os.Exit(1)
	}
	if name := os.Getenv("DELAYBRIDGE_SOAK_LOG"); name != "" {
		if soakLog, err = os.Create(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir) // what is left is in the system's temporary directory
		os.Exit(code)
	}))
}
