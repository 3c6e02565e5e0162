package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// TestKnownFile: what is written is read, also over a file that was left half
// written; beside a journal that has something, no file is not nothing.
func TestKnownFile(t *testing.T) {
	c := &config{dataDir: t.TempDir()}
	dir := filepath.Join(c.dataDir, journalDir)
	journal, err := memdelay.Open(dir, memdelay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	want := func(text string, none bool) {
		t.Helper()
		b, err := knownOf(c, journal)
		if err != nil || string(b) != text || (b == nil) != none {
			t.Errorf("known %q, nil %v, %v; want %q, nil %v", b, b == nil, err, text, none)
		}
	}
	want("", true)
	if err := os.WriteFile(filepath.Join(dir, knownFile+".new"), []byte("half of something long"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "another"} {
		if err := writeKnown(dir, []byte(text)); err != nil {
			t.Fatal(err)
		}
		want(text, false)
	}
	j := job.Info{Job: job.Job{ID: "a", Incarnation: 1, Target: "t", Due: 1, AckWait: 1}, State: job.Pending, Next: 1}
	if err := journal.Adopt(context.Background(), []job.Info{j}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, knownFile)); err != nil {
		t.Fatal(err)
	}
	want("", false)
}
