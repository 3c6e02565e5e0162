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
	return parseArguments(c, fs, std, args, want, want)
}

// parseArguments is parseFlags for least to most arguments.
func parseArguments(c *command, fs *flag.FlagSet, std stdio, args []string, least, most int) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		if std.flags != nil {
			std.flags(fs)
			return err
		}
		printHelp(std.out, c, fs)
		return err
	}
	if err != nil && c.args != "" && strings.HasPrefix(err.Error(), "flag provided but not defined") {
		err = fmt.Errorf("%w; -- stands before arguments that begin with -", err)
	}
	if err == nil && (fs.NArg() < least || fs.NArg() > most) {
		err = argumentError(c, fs, most)
	}
	if err != nil {
		return badUsage(c, err)
	}
	return nil
}

func argumentError(c *command, fs *flag.FlagSet, want int) error {
	if late := lateFlag(fs); late != "" {
		return lateError(late)
	}
	if want == 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if fs.NArg() == 0 {
		return fmt.Errorf("no arguments: want %s", c.args)
	}
	return fmt.Errorf("%d arguments instead of %s", fs.NArg(), c.args)
}

// lateFlag returns an argument that looks like a flag; empty: none does.
func lateFlag(fs *flag.FlagSet) string {
	for _, a := range fs.Args() {
		if strings.HasPrefix(a, "-") && len(a) > 1 {
			return a
		}
	}
	return ""
}

func lateError(flag string) error {
	return fmt.Errorf("flag %s comes after an argument: give flags first, and -- before arguments that begin with -", flag)
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
	fmt.Fprintf(w, "usage: %s\n\n%s\n", strings.Join(usage, " "), c.summary)
	isKey := func(f *flag.Flag) bool { _, ok := f.Value.(*keyFlag); return ok }
	own := printFlags(w, fs, "flags", func(f *flag.Flag) bool { return !isKey(f) })
	heading := "flags"
	if own {
		heading = "flags that are keys of the configuration too"
	}
	printFlags(w, fs, heading, isKey)
}

// printFlags prints the flags that are chosen, and reports whether there are any.
func printFlags(w io.Writer, fs *flag.FlagSet, heading string, chosen func(*flag.Flag) bool) (some bool) {
	fs.VisitAll(func(f *flag.Flag) {
		if !chosen(f) {
			return
		}
		if !some {
			some = true
			fmt.Fprintf(w, "\n%s:\n", heading)
		}
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
	return some
}
