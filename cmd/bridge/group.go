package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// runGroup runs one of the commands below c.
func runGroup(ctx context.Context, c *command, std stdio, args []string) error {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	for _, sub := range c.sub {
		if sub.name == c.name+" "+word {
			return sub.run(ctx, sub, std, args[1:])
		}
	}
	switch word {
	case "-h", "-help", "--help", "help":
		printGroup(std.out, c)
		return nil
	case "":
		printGroup(std.err, c)
		return &inputError{err: fmt.Errorf("%s: %w", c.name, errors.New("say "+strings.Join(strings.Split(c.args, "|"), " or ")))}
	}
	printGroup(std.err, c)
	return &inputError{err: fmt.Errorf("%s: unknown command %q", c.name, word)}
}

func printGroup(w io.Writer, c *command) {
	fmt.Fprintf(w, "usage: %s %s COMMAND [FLAGS]\n\ncommands:\n", program, c.name)
	for _, sub := range c.sub {
		fmt.Fprintf(w, "  %-16s %s\n", sub.name, sub.summary)
	}
}
