package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCompletionInBash asks the function in a real bash.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "completion")
	if err := os.WriteFile(script, []byte(run(t, "completion", "bash").out), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line string // words, the last one being written; _ is an empty one
		want string
		not  string
	}{
		{"_", "serve put get dead completion", "demo-worker"},
		{"re", "reschedule resume", "put"},
		{"put --re", "--replace", "--in"},
		{"put --in _", "", "--in"}, // a value
		{"ls --", "--state --all --nats-url --help", "--data-dir"},
		{"dead _", "ls requeue purge", "--json"},
		{"dead purge --d", "--dry-run", "--all"},
		{"journal inspect --d", "--data-dir", "--to"},
		{"completion _", "bash zsh fish", ""},
		{"serve --local", "--local-max-jobs --local-max-bytes", "--nats-url"},
		{"frobnicate _", "", "--help"},
	} {
		words := append([]string{program}, strings.Fields(tt.line)...)
		for i, w := range words {
			words[i] = strings.ReplaceAll(w, "_", "")
		}
		cmd := exec.Command("bash", "-c", `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); complete -p delaybridge >/dev/null || exit; _delaybridge; printf '%s\n' "${COMPREPLY[@]}"`,
			"bash", script)
		cmd.Args = append(cmd.Args, words...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", tt.line, err, out)
		}
		got := strings.Fields(string(out))
		for _, want := range strings.Fields(tt.want) {
			if !slices.Contains(got, want) {
				t.Errorf("%q: %v, want %s", tt.line, got, want)
			}
		}
		if tt.not != "" && slices.Contains(got, tt.not) || tt.want == "" && len(got) > 0 {
			t.Errorf("%q: %v, want not %q", tt.line, got, tt.not)
		}
	}
}

// TestCompletionKnowsAll: every command and flag is in the script of every shell.
func TestCompletionKnowsAll(t *testing.T) {
	t.Parallel()
	all := describe(t.Context())
	if len(all) < 20 {
		t.Fatalf("%d commands", len(all))
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out := run(t, "completion", shell).out
		for _, d := range all {
			for _, s := range append(slices.Clone(d.sub), d) {
				if !strings.Contains(out, s.name) {
					t.Errorf("%s lacks %s", shell, s.name)
				}
				if s.sub == nil && len(s.flags) == 0 {
					t.Errorf("no flags of %s", s.name)
				}
				for _, f := range s.flags {
					dashed := map[bool]string{true: "-l " + f.name, false: "--" + f.name}[shell == "fish"]
					if !strings.Contains(out, dashed) {
						t.Errorf("%s lacks --%s of %s", shell, f.name, s.name)
					}
				}
			}
		}
	}
	if r := run(t, "completion", "tcsh"); r.code != 2 || !strings.Contains(r.err, "none of bash, zsh, fish") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
}

// TestHelpEverywhere: every command describes itself and ends with 0.
func TestHelpEverywhere(t *testing.T) {
	t.Parallel()
	var walk func(prefix []string, cs []*command)
	walk = func(prefix []string, cs []*command) {
		for _, c := range cs {
			if c.hidden || c.name == "help" {
				continue
			}
			args := append(slices.Clone(prefix), lastWord(c.name), "--help")
			if r := run(t, args...); r.code != 0 || !strings.Contains(r.out, "usage: "+program+" "+c.name) || r.err != "" {
				t.Errorf("%v: exit %d, %q, %q", args, r.code, r.out, r.err)
			}
			walk(append(slices.Clone(prefix), lastWord(c.name)), c.sub)
		}
	}
	walk(nil, commands)
}
