package examples_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestQuickStart pastes the shell blocks of docs/quickstart.md into one shell,
// in order, and wants to see what the document says that each prints.
//
// Only the clone is not made: the new directory is this checkout. And ports are
// other ones: NATS_URL, and the port of Redis.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 8 {
		t.Fatalf("only %d blocks found", len(blocks))
	}
	dir := t.TempDir()
	shell := startCommand(t, exec.Command("bash"), "NATS_URL=nats://127.0.0.1:"+freePort(t), "DELAYBRIDGE_HTTP_ADDR=off", "TMPDIR="+dir)
	if _, err := fmt.Fprintf(shell.in, "git() { [ \"$*\" = 'clone https://github.com/delaybridge/delaybridge' ] && ln -s '%s' delaybridge; }; trap 'echo the shell ends' EXIT\n", checkout); err != nil {
		t.Fatal(err)
	}
	redis, from := freePort(t), 0
	for i, b := range blocks {
		language, text := b[1], strings.ReplaceAll(b[2], "6399", redis)
		switch language {
		case "sh":
			if from, err = shell.paste(dir, i, text); err != nil {
				t.Fatal(err)
			}
		case "":
			for _, expected := range strings.Split(strings.TrimSpace(text), "\n") {
				from, _ = shell.line(from, pattern(expected))
				from++
			}
		default:
			t.Fatalf("a block of %q: only those marked sh are run, and only those without a mark compared", language)
		}
	}
}

// paste runs a block in the shell, ends the test if it fails, and returns where
// what it prints begins.
func (p *process) paste(dir string, number int, block string) (from int, err error) {
	p.t.Helper()
	p.mu.Lock()
	from = len(p.lines)
	p.mu.Unlock()
	file := filepath.Join(dir, fmt.Sprintf("block-%d.sh", number))
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(p.in, "set -e; . %s </dev/null; echo end of block %d\n", file, number); err != nil {
		return 0, err
	}
	if _, m := p.line(from, fmt.Sprintf("^end of block %d$|^the shell ends$", number)); m[0] == "the shell ends" {
		return 0, fmt.Errorf("a command fails:\n%s", block)
	}
	return from, nil
}

// pattern is the expression for a line of output in a document: numbers are any
// numbers, and ... is anything.
func pattern(line string) string {
	line = regexp.QuoteMeta(strings.TrimSpace(line))
	line = regexp.MustCompile(`\d+`).ReplaceAllString(line, `\d+`)
	line = regexp.MustCompile(` +`).ReplaceAllString(line, ` +`)
	return "^" + strings.ReplaceAll(line, `\.\.\.`, `.*`) + " *$"
}

// freePort returns a port below those that systems give to whoever asks for any.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := fmt.Sprint(10_000 + rand.IntN(20_000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}
