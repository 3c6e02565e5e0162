package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// newFlags returns an empty set of flags for c that prints nothing by itself.
func newFlags(c *command) *flag.FlagSet {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parseFlags parses args, of which want arguments must be left over, and
// prints the help when it is asked for.
func parseFlags(c *command, fs *flag.FlagSet, std stdio, args []string, want int) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(std.out, c, fs)
		return err
	}
	if err == nil && fs.NArg() != want {
		err = argumentError(c, fs, want)
	}
	if err != nil {
		return badUsage(c, err)
	}
	return nil
}

func argumentError(c *command, fs *flag.FlagSet, want int) error {
	for _, a := range fs.Args() {
		if strings.HasPrefix(a, "-") && len(a) > 1 {
			return fmt.Errorf("flag %s comes after an argument: give flags first", a)
		}
	}
	if want == 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return fmt.Errorf("%d arguments instead of %s", fs.NArg(), c.args)
}

// badUsage makes err an error of how c was called.
func badUsage(c *command, err error) error {
	return &inputError{
		err:  fmt.Errorf("%s: %w", c.name, err),
		hint: fmt.Sprintf("'%s %s --help' describes the flags", program, c.name),
	}
}

func printHelp(w io.Writer, c *command, fs *flag.FlagSet) {
	usage := []string{program, c.name, "[FLAGS]"}
	if c.args != "" {
		usage = append(usage, c.args)
	}
	fmt.Fprintf(w, "usage: %s\n\n%s\n\nflags:\n", strings.Join(usage, " "), c.summary)
	fs.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		if key, ok := f.Value.(*keyFlag); ok {
			value = strings.Fields(key.k.unit)[0]
		}
		head := "--" + f.Name
		if value != "" {
			head += " " + strings.ToUpper(value)
		}
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "  %-34s %s\n", head, text)
	})
}
