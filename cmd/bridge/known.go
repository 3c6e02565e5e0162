package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// knownFile, beside the journal, holds what Redis had confirmed when the journal
// was written last: what it has lost since is found at the next start.
const knownFile = "redis.json"

// readKnown returns what the file in dir holds; nil: there is none.
func readKnown(dir string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, knownFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// writeKnown replaces the file in dir, durably.
func writeKnown(dir string, known []byte) error {
	return replaceFile(filepath.Join(dir, knownFile), known)
}

// replaceFile makes data the content of the file at path, durably and in one step.
func replaceFile(path string, data []byte) error {
	next := path + ".new"
	if err := writeSynced(next, data); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
