package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the generated part of docs/configuration.md")

// binary is the program, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if f := flag.Lookup("test.fuzzworker"); f != nil && f.Value.String() == "true" {
		return m.Run() // it runs no program
	}
	dir, err := os.MkdirTemp("", "delaybridge-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, program)
	build := exec.Command("go", "build", "-ldflags", "-X main.release=v0.0.0-test", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released; the race detector has cgo
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// patience bounds what takes milliseconds on a quiet machine.
const patience = 20 * time.Second

// cleanEnv is the environment without what would configure the program.
func cleanEnv(extra ...string) (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NATS_") && !strings.HasPrefix(kv, envPrefix) && !strings.HasPrefix(kv, "XDG_CONFIG_HOME=") {
			env = append(env, kv)
		}
	}
	// Whatever NATS context the user has selected is no part of a test.
	return append(append(env, "XDG_CONFIG_HOME=/nowhere"), extra...)
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

// run runs the program to its end.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, nil, "", args...)
}

func runWith(t *testing.T, env []string, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.TempDir() // where its data_dir is by default
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = cleanEnv(env...), strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%v does not end:\n%s%s", args, out.String(), errs.String())
	}
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// process is the program while it runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string // of stderr
	done  chan struct{}

	mu       sync.Mutex
	log, out strings.Builder
}

// start runs the program until the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), lines: make(chan string, 10_000), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = cleanEnv(), t.TempDir()
	p.cmd.Stdout = outputOf{p}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stderr)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("log of %v:\n%s", args, p.output())
		}
	})
	return p
}

func (p *process) read(stderr io.Reader) {
	defer close(p.done)
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		p.mu.Lock()
		p.log.WriteString(sc.Text() + "\n")
		p.mu.Unlock()
		p.lines <- sc.Text()
	}
	close(p.lines)
	_ = p.cmd.Wait() // its state is looked at
}

// output is what the process has logged.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// outputOf takes what a process writes to stdout.
type outputOf struct{ p *process }

func (o outputOf) Write(b []byte) (int, error) {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	return o.p.out.Write(b)
}

// stdout is what the process has written there.
func (p *process) stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// await returns the next line that contains text.
func (p *process) await(text string) string {
	p.t.Helper()
	end := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("ended without a line with %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-end:
			p.t.Fatalf("no line with %q", text)
		}
	}
}

// ready waits for the bridge and returns the addresses that it logs.
func (p *process) ready() map[string]string {
	p.t.Helper()
	fields := map[string]string{}
	for _, m := range regexp.MustCompile(`(\w+)=(\S+)`).FindAllStringSubmatch(p.await("msg=ready"), -1) {
		fields[m[1]] = m[2]
	}
	return fields
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("does not end within %v", within)
		return -1
	}
}
