// Package examples_test runs the examples and the quick start, each against a
// bridge of its own. Those in JavaScript are run by `make test-js`.
package examples_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds what takes a few seconds on a quiet machine, a build included.
const patience = 3 * time.Minute

// programs is the directory with the bridge and the examples in Go.
var programs string

func TestMain(m *testing.M) {
	if os.Getenv(standInEnv) != "" {
		if err := standIn(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "delaybridge-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if out, err := exec.Command("go", "build", "-o", dir+"/", "../cmd/bridge", "./go/...").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// process is a program, or a shell with all that it starts.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	news chan struct{} // has room for one
	done chan struct{}

	mu    sync.Mutex
	lines []string // of stdout and stderr
}

// start runs a program of examples/go, or cmd/bridge, until the test ends.
func start(t *testing.T, url, name string, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.Command(filepath.Join(programs, name), args...), "NATS_URL="+url)
}

// startCommand runs cmd, in a directory of its own and with nothing of this
// environment that would configure it.
func startCommand(t *testing.T, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, news: make(chan struct{}, 1), done: make(chan struct{})}
	cmd.Dir = t.TempDir()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NATS_") && !strings.HasPrefix(kv, "DELAYBRIDGE_") && !strings.HasPrefix(kv, "MAKE") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, "XDG_CONFIG_HOME="+cmd.Dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = input, input
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	input.Close()
	go p.read(output)
	t.Cleanup(p.stop)
	return p
}

func (p *process) read(output io.ReadCloser) {
	defer close(p.done)
	defer output.Close()
	for sc := bufio.NewScanner(output); sc.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, sc.Text())
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	_ = p.cmd.Wait() // its state is looked at
}

// stop kills the process and all that it has started.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	if p.t.Failed() {
		p.t.Logf("%v printed:\n%s", p.cmd.Args, strings.Join(p.lines, "\n"))
	}
}

// line waits for the first line from the given one on that matches, and returns
// its number and what its groups match.
func (p *process) line(from int, expression string) (int, []string) {
	p.t.Helper()
	re := regexp.MustCompile(expression)
	for end := time.After(patience); ; {
		p.mu.Lock()
		lines := p.lines
		p.mu.Unlock()
		for ; from < len(lines); from++ {
			if m := re.FindStringSubmatch(lines[from]); m != nil {
				return from, m
			}
		}
		select {
		case <-p.news:
		case <-p.done:
			if p.mu.Lock(); from == len(p.lines) {
				p.mu.Unlock()
				p.t.Fatalf("ended without a line like %s", expression)
			}
			p.mu.Unlock()
		case <-end:
			p.t.Fatalf("no line like %s", expression)
		}
	}
}

// says waits for lines, in any order.
func (p *process) says(expressions ...string) {
	p.t.Helper()
	for _, e := range expressions {
		p.line(0, e)
	}
}

// ends waits for the end of the process, which must be a good one.
func (p *process) ends() {
	p.t.Helper()
	select {
	case <-p.done:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("%v: exit %d", p.cmd.Args, code)
		}
	case <-time.After(patience):
		p.t.Fatalf("%v does not end", p.cmd.Args)
	}
}

// bridge starts one, with a NATS server and jobs in memory, and returns the
// address of the server.
func bridge(t *testing.T) (p *process, url string) {
	t.Helper()
	p = start(t, "nats://127.0.0.1:0", "bridge", "dev", "--http-addr", "off", "--id", "examples")
	_, m := p.line(0, `msg=ready nats=(\S+)`)
	return p, m[1]
}

// stopped tells a worker to stop, which it does in order.
func stopped(p *process) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.ends()
}

func TestProduceAndWork(t *testing.T) {
	t.Parallel()
	_, url := bridge(t)
	worker := start(t, url, "worker", "orders.remind")
	producer := start(t, url, "produce", "orders.remind")
	producer.ends()
	producer.says(`^order-17 due .* stored memory$`, `^order-18 due .* stored memory$`, `^order-18 moved: done$`, `^100 reminders scheduled$`, `^reminder-0 cancelled: done$`)
	worker.says(`^worked on order 17, attempt 1, `, `^worked on order 18, attempt 1, `)
	stopped(worker)
}

func TestPlain(t *testing.T) {
	t.Parallel()
	_, url := bridge(t)
	worker := start(t, url, "plain-worker", "orders.remind")
	producer := start(t, url, "plain-produce", "orders.remind")
	producer.says(` due .* stored memory$`, `^result: reminded of order 17$`)
	producer.ends()
	for _, payload := range []string{"order 18", ""} {
		start(t, url, "bridge", "put", "orders.remind", payload).ends()
	}
	worker.says(`^\+ACK reminded of order 17 is durable`, `^-NAK 1s is durable`, `^working on order 18, attempt 2`, `^\+ACK reminded of order 18 is durable`,
		`^\+TERM no order given is durable`)
	stopped(worker)

	refused := start(t, url, "plain-produce", "orders.*")
	refused.says(`refused with 400: target not valid`)
}

// TestWebhook: a job is retried by its backoff, another when the server says so,
// and one that is refused is dead until it is requeued.
func TestWebhook(t *testing.T) {
	t.Parallel()
	answers := make(chan func(http.ResponseWriter), 10)
	asked := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- r.Header.Get("Idempotency-Key") + " " + string(body)
		(<-answers)(w)
	}))
	t.Cleanup(srv.Close)
	status := func(code int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(code) } }
	answers <- status(500)
	answers <- func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(429)
	}
	answers <- status(404)
	answers <- status(204)

	b, url := bridge(t)
	worker := start(t, url, "webhook", "hooks.billing", srv.URL)
	start(t, url, "bridge", "put", "--id", "invoice-3", "--header", "Delay-Backoff=300ms", "hooks.billing", "paid").ends()
	worker.says(`WARN job failed job=invoice-3 .*500 Internal`, `WARN job failed job=invoice-3 .*429 Too Many`, `WARN job failed job=invoice-3 .*404 Not Found`)

	start(t, url, "bridge", "put", "--id", "other", "hooks.idle", "x").ends() // is not dead
	b.says(`msg="job is dead" id=invoice-3 `)
	requeue := start(t, url, "requeue", "hooks.>", "404")
	requeue.ends()
	if got := strings.Join(requeue.lines, "\n"); got != "invoice-3, dead after attempt 3 (terminated: answered 404 Not Found): done" {
		t.Errorf("requeue says %q", got)
	}
	worker.says(`INFO job done job=invoice-3 .* attempt=4`)
	for range 4 {
		if got := <-asked; got != "invoice-3 paid" {
			t.Errorf("the server was sent %q", got)
		}
	}
	stopped(worker)
}
