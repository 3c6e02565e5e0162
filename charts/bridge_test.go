package charts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// patience is for a machine that is busy with other things.
const patience = time.Minute

var buildDir string // until the end of all tests

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if buildDir, err = os.MkdirTemp("", "charts"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(buildDir)
		return m.Run()
	}())
}

var buildBridge = sync.OnceValues(func() (string, error) {
	program := filepath.Join(buildDir, "delaybridge")
	build := exec.Command("go", "build", "-o", program, "./cmd/bridge")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/bridge: %w\n%s", err, out)
	}
	return program, nil
})

// bridgeProgram is the bridge, built once.
func bridgeProgram(t *testing.T) string {
	t.Helper()
	program, err := buildBridge()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// A container is one that was rendered, to be run here: its files are in dir in place of
// the root.
type container struct {
	corev1.Container
	program, dir string
	env          []string
}

// unpack writes the files that the pod would mount, secrets with made-up contents, and
// makes its environment.
func unpack(t *testing.T, pod string, c corev1.Container, volumes []corev1.Volume, all []runtime.Object, override ...string) *container {
	t.Helper()
	u := &container{Container: c, program: bridgeProgram(t), dir: t.TempDir()}
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(u.dir, "etc/delaybridge", path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			for name, text := range configOf(all, s.ConfigMap) {
				write(name, text)
			}
			if s.Secret != nil {
				for _, item := range s.Secret.Items {
					write(item.Path, "secret")
				}
			}
		}
	}
	for _, e := range c.Env {
		value := e.Value
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.FieldRef != nil:
			value = pod
		case e.Name == "DELAYBRIDGE_REDIS_URL":
			value = "redis://127.0.0.1:1/0"
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "DELAYBRIDGE_REDIS_CA" }) {
				value = "rediss://127.0.0.1:1/0"
			}
		default:
			value = "someone"
		}
		if strings.HasPrefix(value, "/") {
			value = u.dir + value
		}
		u.env = append(u.env, e.Name+"="+value)
	}
	u.env = append(u.env, override...) // the last one counts
	return u
}

func configOf(all []runtime.Object, s *corev1.ConfigMapProjection) map[string]string {
	for _, o := range all {
		if m, ok := o.(*corev1.ConfigMap); ok && s != nil && m.Name == s.Name {
			return m.Data
		}
	}
	return nil
}

func (c *container) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env, cmd.Dir = c.env, c.dir
	return cmd
}

// TestBridgeAcceptsIt: the bridge itself reads what each row makes. It exits with 2 for a
// configuration that is wrong; doctor, here without NATS and Redis, with 1.
func TestBridgeAcceptsIt(t *testing.T) {
	t.Parallel()
	forEachRow(t, func(t *testing.T, row string, files map[string]string) {
		t.Parallel()
		all := objects(t, files)
		s := the[*appsv1.StatefulSet](t, all)
		override := []string{"DELAYBRIDGE_NATS_URL=nats://127.0.0.1:1"}
		for _, e := range s.Spec.Template.Spec.Containers[0].Env {
			if scheme, _, ok := strings.Cut(e.Value, "://"); ok && e.Name == "DELAYBRIDGE_REDIS_URL" {
				override = append(override, e.Name+"="+scheme+"://127.0.0.1:1/0")
			}
		}
		c := unpack(t, s.Name+"-0", s.Spec.Template.Spec.Containers[0], s.Spec.Template.Spec.Volumes, all, override...)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := c.command(ctx, "doctor", "--json").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(`"bridge":"`+s.Name+`-0"`)) {
			t.Errorf("doctor: %v\n%s", err, out)
		}
	})
}

// TestPodRuns is what a kubelet does with the default pod: it waits for NATS without
// being restarted, gets ready when NATS comes, answers helm test, and stops in time.
func TestPodRuns(t *testing.T) {
	t.Parallel()
	files, err := template(loadChart(t, chartDir), "delaybridge", nil)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, files)
	spec := the[*appsv1.StatefulSet](t, all).Spec.Template.Spec
	natsAddr, httpAddr := freeAddr(t), freeAddr(t)
	override := []string{"DELAYBRIDGE_NATS_URL=nats://" + natsAddr, "DELAYBRIDGE_HTTP_ADDR=" + httpAddr}
	c := unpack(t, "delaybridge-0", spec.Containers[0], spec.Volumes, all, override...)
	bridge := run(t, c.command(t.Context(), c.Args...))

	bridge.answers(httpAddr, c.StartupProbe, 200)
	bridge.answers(httpAddr, c.LivenessProbe, 200)
	bridge.answers(httpAddr, c.ReadinessProbe, 503)
	// dev is used for its NATS server; its own bridge has another prefix.
	dev := exec.CommandContext(t.Context(), c.program, "dev", "--store", "local", "--prefix", "other", "--nats-url", "nats://"+natsAddr, "--http-addr", "off")
	dev.Env = []string{}
	run(t, dev)
	bridge.answers(httpAddr, c.ReadinessProbe, 200)

	test := the[*corev1.Pod](t, all)
	asks := unpack(t, test.Name, test.Spec.Containers[0], test.Spec.Volumes, all, override[0])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := asks.command(ctx, asks.Args...).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("delaybridge-0")) {
		t.Errorf("helm test: %v\n%s", err, out)
	}
	if err := bridge.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-bridge.ended:
		if code := bridge.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("it ended with %d\n%s", code, bridge.log.String())
		}
	case <-time.After(time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second):
		t.Errorf("it did not end within the grace period\n%s", bridge.log.String())
	}
}

// process is one that runs until the end of the test at most.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan struct{}
}

func run(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t, cmd, &lockedBuffer{}, make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(p.ended); _ = cmd.Wait() }() // how it ended is in ProcessState
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	return p
}

// answers waits until the page of a probe answers with code, as a kubelet asks it.
func (p *process) answers(addr string, probe *corev1.Probe, code int) {
	p.t.Helper()
	url := strings.ToLower(string(probe.HTTPGet.Scheme)) + "://" + addr + probe.HTTPGet.Path
	client := &http.Client{Timeout: 5 * time.Second}
	var seen string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		resp, err := client.Get(url)
		if err != nil {
			seen = err.Error()
		} else {
			resp.Body.Close()
			if seen = resp.Status; resp.StatusCode == code {
				return
			}
		}
		select {
		case <-p.ended:
			p.t.Fatalf("%s: the bridge has ended\n%s", url, p.log.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	p.t.Fatalf("%s: %s, not %d\n%s", url, seen, code, p.log.String())
}

// freeAddr is one that nothing listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
