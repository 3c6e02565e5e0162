package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// child is this program run again, as another command. It ends when its stdin
// ends, so that none outlives a parent that was killed.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string   // what it prints, line by line
	done  chan struct{} // closed when it has ended and was waited for
	err   error         // how it ended; valid after done
}

// startChild runs the command name with args. Its stderr is passed on.
func startChild(std stdio, name string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{name}, args...)...)
	cmd.Stderr = std.err
	return startLines(cmd)
}

// startLines starts cmd and reads its lines.
func startLines(cmd *exec.Cmd) (*child, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	c := &child{cmd: cmd, stdin: stdin, lines: make(chan string, 1024), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			c.lines <- sc.Text()
		}
		close(c.lines)
		c.err = cmd.Wait()
	}()
	return c, nil
}

// stop lets the child end by itself and waits for it.
func (c *child) stop() {
	_ = c.stdin.Close() // closed already when it has ended
	c.wait()
}

// wait discards what the child still prints.
func (c *child) wait() {
	for range c.lines {
	}
	<-c.done
}

// untilStdinEnds returns when the parent has closed the pipe, or is gone.
func untilStdinEnds(std stdio) { _, _ = io.Copy(io.Discard, std.in) }
