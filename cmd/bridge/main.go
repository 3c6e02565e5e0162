// Command bridge is the delayed-job bridge and its command line; the released
// binary is called delaybridge.
//
// Every command reads its flags before its arguments, prints its help with
// --help, and ends with
//
//	0  done, or stopped in order
//	1  it failed
//	2  what it was told is wrong: command, flag, argument, environment,
//	   configuration file, or credentials that NATS refuses
//
// Messages and logs go to stderr, results to stdout. The configuration is one
// table, see keys.go, from which flags, environment, file and the reference in
// docs/configuration.md follow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const program = "delaybridge"

// stdio is what a command sees of the outside.
type stdio struct {
	in       io.Reader
	out, err io.Writer
	env      []string
}

// A command is one word after the program's name.
type command struct {
	name    string
	args    string // the arguments after the flags, as help shows them
	summary string
	hidden  bool // run by other commands, not by people
	run     func(ctx context.Context, c *command, std stdio, args []string) error
}

// commands is set in init, because help refers to it.
var commands []*command

func init() {
	commands = []*command{
		{name: "serve", summary: "run a bridge", run: runServe},
		{name: "dev", summary: "run a bridge with a NATS server of its own, for development", run: runDev},
		{name: "demo", summary: "show delayed jobs, and how soon a killed worker's job is at another; ends by itself", run: runDemo},
		{name: "put", args: "TARGET PAYLOAD", summary: "schedule a job; a PAYLOAD of - is read from stdin", run: runPut},
		{name: "journal", args: "inspect|salvage", summary: "look at a bridge's data_dir, or save what can be read of a damaged one", run: runJournal},
		{name: "bench", summary: "measure a running bridge, or one of its own", run: runBench},
		{name: "version", summary: "print the version", run: runVersion},
		{name: "help", summary: "list the commands", run: runHelp},
		{name: "demo-worker", hidden: true, run: runDemoWorker},
		{name: "bench-serve", hidden: true, run: runBenchServe},
		{name: "bench-nats", hidden: true, run: runBenchNATS},
		{name: "bench-responder", hidden: true, run: runBenchResponder},
	}
}

func main() {
	std := stdio{os.Stdin, os.Stdout, os.Stderr, os.Environ()}
	os.Exit(exitCode(std.err, dispatch(context.Background(), std, os.Args[1:])))
}

func dispatch(ctx context.Context, std stdio, args []string) error {
	if len(args) == 0 {
		printCommands(std.err)
		return &inputError{err: errors.New("no command given")}
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	for _, c := range commands {
		if c.name == name {
			return c.run(ctx, c, std, args[1:])
		}
	}
	printCommands(std.err)
	return &inputError{err: fmt.Errorf("unknown command %q", name)}
}

// inputError says that what the program was told is wrong.
type inputError struct {
	err  error
	hint string // what to run for help, if that helps
}

func (e *inputError) Error() string { return e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// exitCode reports err and returns the status to end with.
func exitCode(w io.Writer, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(w, "%s: %v\n", program, err)
	var in *inputError
	if errors.As(err, &in) {
		if in.hint != "" {
			fmt.Fprintln(w, in.hint)
		}
		return 2
	}
	return 1
}

func runHelp(_ context.Context, _ *command, std stdio, _ []string) error {
	printCommands(std.out)
	return nil
}

func printCommands(w io.Writer) {
	fmt.Fprintf(w, "usage: %s COMMAND [FLAGS] [ARGUMENTS]\n\ncommands:\n", program)
	for _, c := range commands {
		if !c.hidden {
			fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
		}
	}
	fmt.Fprintf(w, "\n%s COMMAND --help describes the flags of one.\n", program)
}
