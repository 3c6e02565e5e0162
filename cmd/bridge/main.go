// Command bridge is the delayed-job bridge and its command line; the released
// binary is called delaybridge.
//
// Every command reads its flags before its arguments, prints its help with
// --help, and ends with
//
//	0  done, or stopped in order
//	1  it failed
//	2  what it was told is wrong: command, flag, argument, environment,
//	   configuration file, or what NATS or Redis refuse for good
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
	flags    func(*flag.FlagSet) // gets the flags of a command in place of its help; nil: none
}

// A command is one word after the program's name.
type command struct {
	name    string
	args    string // the arguments after the flags, as help shows them
	summary string
	hidden  bool       // run by other commands, not by people
	sub     []*command // of a group, run by runGroup
	run     func(ctx context.Context, c *command, std stdio, args []string) error
}

// commands is set in init, because help refers to it.
var commands []*command

func init() {
	commands = []*command{
		{name: "serve", summary: "run a bridge", run: runServe},
		{name: "dev", summary: "run a bridge with a NATS server of its own, for development", run: runDev},
		{name: "demo", summary: "show delayed jobs, and how soon a killed worker's job is at another; ends by itself", run: runDemo},
		{name: "put", args: "TARGET PAYLOAD", summary: "schedule a job, or those of a file; a PAYLOAD of - is read from stdin", run: runPut},
		{name: "get", args: "ID...", summary: "show jobs", run: runGet},
		{name: "ls", summary: "list jobs", run: runList},
		{name: "cancel", args: "ID...", summary: "remove jobs that are pending or dead", run: runCancel},
		{name: "reschedule", args: "ID...", summary: "give pending jobs another due time", run: runReschedule},
		{name: "fire", args: "ID...", summary: "make pending jobs due now", run: runFire},
		{name: "dead", args: "ls|requeue|purge", summary: "look at dead jobs, run them again, or remove them", sub: deadCommands, run: runGroup},
		{name: "pause", args: "TARGET", summary: "hold the jobs of a target, or of a pattern, back", run: runPause},
		{name: "resume", args: "TARGET", summary: "end a pause", run: runResume},
		{name: "stats", summary: "show the counts of a bridge", run: runStats},
		{name: "watch", summary: "show them, and events, live", run: runWatch},
		{name: "workers", summary: "list the workers that own their jobs", run: runWorkers},
		{name: "bridges", summary: "list the bridges", run: runBridges},
		{name: "journal", args: "inspect|salvage", summary: "look at a bridge's data_dir, or save what can be read of a damaged one", sub: journalCommands, run: runGroup},
		{name: "doctor", summary: "check what a bridge with this configuration depends on; exits 1 on a finding", run: runDoctor},
		{name: "bench", summary: "measure a running bridge, or one of its own", run: runBench},
		{name: "completion", args: "bash|zsh|fish", summary: "print a script with which a shell completes commands and flags", run: runCompletion},
		{name: "version", summary: "print the version", run: runVersion},
		{name: "help", summary: "list the commands", run: runHelp},
		{name: "demo-worker", hidden: true, run: runDemoWorker},
		{name: "bench-serve", hidden: true, run: runBenchServe},
		{name: "bench-nats", hidden: true, run: runBenchNATS},
		{name: "bench-responder", hidden: true, run: runBenchResponder},
	}
}

func main() {
	std := stdio{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ()}
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
			fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
		}
	}
	fmt.Fprintf(w, "\n%s COMMAND --help describes the flags of one.\n", program)
}
