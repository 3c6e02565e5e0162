package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"sort"
	"strings"
)

// runCompletion prints a script for a shell. It follows from the table of commands
// and from the flags that each registers.
func runCompletion(ctx context.Context, c *command, std stdio, args []string) error {
	fs := newFlags(c)
	if err := parseFlags(c, fs, std, args, 1); err != nil {
		return err
	}
	write := map[string]func(io.Writer, []completed){"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[fs.Arg(0)]
	if write == nil {
		return badUsage(c, fmt.Errorf("%q is none of bash, zsh, fish", fs.Arg(0)))
	}
	write(std.out, describe(ctx))
	return nil
}

// completed is what a shell must know of a command.
type completed struct {
	name, summary string
	flags         []completedFlag
	words         []string // what may come after it, flags aside
	sub           []completed
}

type completedFlag struct {
	name, help string
	value      bool // takes one
}

// describe asks every command for its flags.
func describe(ctx context.Context) []completed {
	return describeAll(ctx, commands)
}

func describeAll(ctx context.Context, cs []*command) (out []completed) {
	for _, c := range cs {
		if c.hidden {
			continue
		}
		d := completed{name: lastWord(c.name), summary: c.summary}
		if d.sub = describeAll(ctx, c.sub); d.sub == nil {
			d.flags = flagsOf(ctx, c)
			if strings.Contains(c.args, "|") {
				d.words = strings.Split(c.args, "|")
			}
		}
		for _, s := range d.sub {
			d.words = append(d.words, s.name)
		}
		out = append(out, d)
	}
	return out
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }

func flagsOf(ctx context.Context, c *command) []completedFlag {
	out := []completedFlag{{"help", "describe the flags", false}}
	std := stdio{in: strings.NewReader(""), out: io.Discard, err: io.Discard, flags: func(fs *flag.FlagSet) {
		fs.VisitAll(func(f *flag.Flag) {
			isBool, ok := f.Value.(interface{ IsBoolFlag() bool })
			_, help := flag.UnquoteUsage(f)
			out = append(out, completedFlag{f.Name, help, !ok || !isBool.IsBoolFlag()})
		})
	}}
	_ = c.run(ctx, c, std, []string{"--help"}) // the error says that help was asked for
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// candidates are what may stand after a command.
func (d *completed) candidates() string {
	words := append([]string{}, d.words...)
	for _, f := range d.flags {
		words = append(words, "--"+f.name)
	}
	return strings.Join(words, " ")
}

// values are the flags after which a value stands.
func (d *completed) values() string {
	var out []string
	for _, f := range d.flags {
		if f.value {
			out = append(out, "--"+f.name)
		}
	}
	return strings.Join(out, "|")
}

func names(ds []completed) string {
	var out []string
	for _, d := range ds {
		out = append(out, d.name)
	}
	return strings.Join(out, " ")
}

// bashCompletion writes a function that looks at the words before the one being
// written; after a flag with a value, and where nothing fits, bash offers files.
func bashCompletion(w io.Writer, ds []completed) {
	fmt.Fprintf(w, "# bash completion of %[1]s; use it with: source <(%[1]s completion bash)\n_%[1]s() {\n", program)
	fmt.Fprintf(w, "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n\tCOMPREPLY=()\n")
	fmt.Fprintf(w, "\tif ((COMP_CWORD == 1)); then\n\t\tCOMPREPLY=($(compgen -W %s -- \"$cur\"))\n\t\treturn\n\tfi\n", quote(names(ds)))
	fmt.Fprintln(w, "\tlocal command=${COMP_WORDS[1]}")
	fmt.Fprintln(w, "\tcase $command in")
	for _, d := range ds {
		if d.sub != nil {
			fmt.Fprintf(w, "\t%s) ((COMP_CWORD > 2)) && command+=\" ${COMP_WORDS[2]}\" ;;\n", d.name)
		}
	}
	fmt.Fprintln(w, "\tesac")
	fmt.Fprintln(w, "\tcase $command in")
	for _, d := range ds {
		bashCase(w, d.name, &d)
		for _, s := range d.sub {
			bashCase(w, d.name+" "+s.name, &s)
		}
	}
	fmt.Fprintf(w, "\tesac\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _%[1]s %[1]s\n", program)
}

func bashCase(w io.Writer, command string, d *completed) {
	fmt.Fprintf(w, "\t%s)\n", quote(command))
	if values := d.values(); values != "" {
		fmt.Fprintf(w, "\t\tcase $prev in %s) return ;; esac\n", values)
	}
	fmt.Fprintf(w, "\t\twords=%s\n\t\t;;\n", quote(d.candidates()))
}

// zshCompletion writes a function for zsh's own system of completion.
func zshCompletion(w io.Writer, ds []completed) {
	fmt.Fprintf(w, "#compdef %[1]s\n# zsh completion of %[1]s; use it with: source <(%[1]s completion zsh)\n_%[1]s() {\n\tlocal -a found\n", program)
	fmt.Fprintln(w, "\tif ((CURRENT == 2)); then\n\t\tfound=(")
	for _, d := range ds {
		fmt.Fprintf(w, "\t\t\t%s\n", quote(d.name+":"+colons(d.summary)))
	}
	fmt.Fprintln(w, "\t\t)\n\t\t_describe command found\n\t\treturn\n\tfi\n\tlocal name=$words[2]")
	fmt.Fprintln(w, "\tcase $name in")
	for _, d := range ds {
		if d.sub != nil {
			fmt.Fprintf(w, "\t%s) ((CURRENT > 3)) && name+=\" $words[3]\" ;;\n", d.name)
		}
	}
	fmt.Fprintln(w, "\tesac\n\tcase $name in")
	for _, d := range ds {
		zshCase(w, d.name, &d)
		for _, s := range d.sub {
			zshCase(w, d.name+" "+s.name, &s)
		}
	}
	fmt.Fprintf(w, "\tesac\n\t_describe argument found || _files\n}\ncompdef _%[1]s %[1]s\n", program)
}

func zshCase(w io.Writer, command string, d *completed) {
	fmt.Fprintf(w, "\t%s)\n", quote(command))
	if values := d.values(); values != "" {
		fmt.Fprintf(w, "\t\tcase $words[CURRENT-1] in %s) _files; return ;; esac\n", values)
	}
	fmt.Fprintln(w, "\t\tfound=(")
	for _, s := range d.sub {
		fmt.Fprintf(w, "\t\t\t%s\n", quote(s.name+":"+colons(s.summary)))
	}
	if d.sub == nil {
		for _, word := range d.words {
			fmt.Fprintf(w, "\t\t\t%s\n", quote(word))
		}
	}
	for _, f := range d.flags {
		fmt.Fprintf(w, "\t\t\t%s\n", quote("--"+f.name+":"+colons(f.help)))
	}
	fmt.Fprintln(w, "\t\t)\n\t\t;;")
}

// fishCompletion writes one line per command and flag.
func fishCompletion(w io.Writer, ds []completed) {
	fmt.Fprintf(w, "# fish completion of %[1]s; use it with: %[1]s completion fish | source\n", program)
	for _, d := range ds {
		fmt.Fprintf(w, "complete -c %s -f -n __fish_use_subcommand -a %s -d %s\n", program, d.name, fishQuote(d.summary))
		seen := "__fish_seen_subcommand_from " + d.name
		fishFlags(w, seen, d.flags)
		if d.sub == nil && d.words != nil {
			fmt.Fprintf(w, "complete -c %s -f -n %s -a %s\n", program, fishQuote(seen), fishQuote(strings.Join(d.words, " ")))
		}
		for _, s := range d.sub {
			fmt.Fprintf(w, "complete -c %s -f -n %s -a %s -d %s\n", program,
				fishQuote(seen+"; and not __fish_seen_subcommand_from "+names(d.sub)), s.name, fishQuote(s.summary))
			fishFlags(w, seen+"; and __fish_seen_subcommand_from "+s.name, s.flags)
		}
	}
}

func fishFlags(w io.Writer, condition string, flags []completedFlag) {
	for _, f := range flags {
		takes := ""
		if f.value {
			takes = " -r"
		}
		fmt.Fprintf(w, "complete -c %s -n %s -l %s%s -d %s\n", program, fishQuote(condition), f.name, takes, fishQuote(f.help))
	}
}

// quote quotes for bash and zsh.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

// colons escapes what separates a word from its description in zsh.
func colons(s string) string { return strings.ReplaceAll(s, ":", `\:`) }
