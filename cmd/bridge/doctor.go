package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// How much a check matters. Warnings and problems are findings.
const (
	levelOK      = "ok"
	levelInfo    = "info"    // worth knowing, or not known
	levelWarning = "warning" // works, but jobs are late or lost in some case
	levelProblem = "problem" // a bridge does not start, or does not do what it promises
)

// check is one thing that was looked at.
type check struct {
	Name  string `json:"check"` // part.subject
	Level string `json:"level"`
	Seen  string `json:"seen"`
	Why   string `json:"why,omitempty"` // it matters
	Do    string `json:"do,omitempty"`
}

// checkup is all that doctor says.
type checkup struct {
	Bridge   string  `json:"bridge"`
	Problems int     `json:"problems"`
	Warnings int     `json:"warnings"`
	Checks   []check `json:"checks"`
}

// doctor looks at what a bridge with this configuration depends on.
type doctor struct {
	cfg    *config
	checks []check
}

// doctorTimeout bounds all of it.
const doctorTimeout = time.Minute

func runDoctor(ctx context.Context, c *command, std stdio, args []string) error {
	fs := newFlags(c)
	flags := registerKeys(fs, keys)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return err
	}
	cfg, err := loadConfig(flags, std.env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	d := &doctor{cfg: &cfg}
	d.look(ctx)
	r := d.result()
	if err := r.print(std.out, *asJSON); err != nil {
		return err
	}
	if r.Problems+r.Warnings > 0 {
		return fmt.Errorf("doctor: %s, %s", count(r.Problems, "problem"), count(r.Warnings, "warning"))
	}
	return nil
}

// look makes all checks.
func (d *doctor) look(ctx context.Context) {
	d.lookAtNATS(ctx)
	if d.cfg.store == storeRedis {
		d.lookAtRedis(ctx)
	}
	d.lookAtDisk()
}

func (d *doctor) add(c check)                     { d.checks = append(d.checks, c) }
func (d *doctor) ok(name, seen string)            { d.add(check{name, levelOK, seen, "", ""}) }
func (d *doctor) info(name, seen, do string)      { d.add(check{name, levelInfo, seen, "", do}) }
func (d *doctor) warn(name, seen, why, do string) { d.add(check{name, levelWarning, seen, why, do}) }
func (d *doctor) bad(name, seen, why, do string)  { d.add(check{name, levelProblem, seen, why, do}) }

func (d *doctor) result() checkup {
	r := checkup{Bridge: d.cfg.bridge.ID, Checks: d.checks}
	for _, c := range d.checks {
		switch c.Level {
		case levelProblem:
			r.Problems++
		case levelWarning:
			r.Warnings++
		}
	}
	return r
}

func (r *checkup) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-8s %-*s %s\n", c.Level, width, c.Name, c.Seen)
		if c.Why != "" {
			fmt.Fprintf(&b, "%9swhy: %s\n", "", c.Why)
		}
		if c.Do != "" {
			fmt.Fprintf(&b, "%9sdo:  %s\n", "", c.Do)
		}
	}
	fmt.Fprintf(&b, "%s, %s\n", count(r.Problems, "problem"), count(r.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// count is "1 job", "2 jobs".
func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
