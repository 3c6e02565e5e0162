package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/delaybridge/delaybridge/memdelay"
)

// journalCommands look at what is in data_dir, without a running bridge.
var journalCommands = []*command{
	{name: "journal inspect", summary: "say what a data_dir holds and whether it is damaged; exits 1 if it is", run: runInspect},
	{name: "journal salvage", summary: "write what can be read of a data_dir to a new one; the old one stays as it is", run: runSalvage},
}

// section is one directory below data_dir.
type section struct {
	Name    string          `json:"name"` // local or journal
	Damaged bool            `json:"damaged"`
	Report  memdelay.Report `json:"report"`
}

// sectionsOf returns the names of the directories that dir has; an empty one when
// dir is such a directory itself.
func sectionsOf(dir string) (names []string, err error) {
	for _, name := range []string{localDir, journalDir} {
		switch _, err := os.Stat(filepath.Join(dir, name)); {
		case err == nil:
			names = append(names, name)
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	if names != nil {
		return names, nil
	}
	files, err := os.ReadDir(dir)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s is empty: name the data_dir of a bridge", dir)
	}
	return []string{""}, err // one of them was named itself
}

// forSections calls f for each directory below dir, prints what it reports and
// returns which are damaged.
func forSections(std stdio, dir string, asJSON bool, f func(name string) (memdelay.Report, error)) (damaged []string, err error) {
	names, err := sectionsOf(dir)
	if err != nil {
		return nil, err
	}
	var sections []section
	for _, name := range names {
		r, err := f(name)
		if err != nil {
			return nil, err
		}
		s := section{filepath.Base(filepath.Join(dir, name)), r.Damaged(), r}
		sections = append(sections, s)
		if s.Damaged {
			damaged = append(damaged, s.Name)
		}
	}
	return damaged, printSections(std.out, sections, asJSON)
}

func printSections(w io.Writer, sections []section, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(sections)
	}
	for _, s := range sections {
		if _, err := fmt.Fprintf(w, "%s: %s\n", s.Name, s.Report); err != nil {
			return err
		}
	}
	return nil
}

// journalFlags are those of the journal commands.
type journalFlags struct {
	dir, to string
	asJSON  bool
}

// parseJournal parses args; salvaging needs a directory to write to.
func parseJournal(c *command, std stdio, args []string, salvage bool) (f journalFlags, err error) {
	fs := newFlags(c)
	fs.StringVar(&f.dir, "data-dir", "", "`DIRECTORY` of the bridge, which must not run")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON")
	if salvage {
		fs.StringVar(&f.to, "to", "", "new `DIRECTORY`, which must be empty or not exist")
	}
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return f, err
	}
	switch {
	case f.dir == "":
		err = badUsage(c, errors.New("--data-dir is needed"))
	case salvage && f.to == "":
		err = badUsage(c, errors.New("--to is needed"))
	}
	return f, err
}

func runInspect(_ context.Context, c *command, std stdio, args []string) error {
	f, err := parseJournal(c, std, args, false)
	if err != nil {
		return err
	}
	damaged, err := forSections(std, f.dir, f.asJSON, func(name string) (memdelay.Report, error) {
		return memdelay.Inspect(filepath.Join(f.dir, name))
	})
	if err == nil && damaged != nil {
		err = fmt.Errorf("damaged in %s: %s; '%s journal salvage --data-dir %s --to NEW' saves what can be read",
			f.dir, strings.Join(damaged, ", "), program, f.dir)
	}
	return err
}

func runSalvage(_ context.Context, c *command, std stdio, args []string) error {
	f, err := parseJournal(c, std, args, true)
	if err != nil {
		return err
	}
	names, err := os.ReadDir(f.to)
	switch {
	case err == nil && len(names) > 0:
		return fmt.Errorf("%s is not empty: name a directory that does not exist", f.to)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	damaged, err := forSections(std, f.dir, f.asJSON, func(name string) (memdelay.Report, error) {
		return memdelay.Salvage(filepath.Join(f.dir, name), filepath.Join(f.to, name))
	})
	if err != nil {
		return err
	}
	if damaged != nil {
		fmt.Fprintf(std.err, "what could not be read is missing from the copy: %s\n", strings.Join(damaged, ", "))
	}
	fmt.Fprintf(std.err, "copied to %s\n", f.to)
	return nil
}
