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

// program is the bridge's binary, built for this run of the tests.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "delaybridge-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "delaybridge")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/bridge").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the bridge cannot be built: %v\n%s", err, out)
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
