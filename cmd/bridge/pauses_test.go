package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/delaybridge/delaybridge/job"
)

func TestPauseFile(t *testing.T) {
	ctx := context.Background()
	f := &pauseFile{dir: t.TempDir()}
	if p, err := f.LoadPauses(ctx); err != nil || len(p) != 0 {
		t.Fatalf("without a file: %v, %v", p, err)
	}
	for _, p := range []job.Pauses{{"a": {Paused: true, At: 2}}, {"a": {At: 1}, "b.>": {Paused: true, At: 1}}} {
		if err := f.SavePauses(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	want := job.Pauses{"a": {Paused: true, At: 2}, "b.>": {Paused: true, At: 1}}
	if p, err := (&pauseFile{dir: f.dir}).LoadPauses(ctx); err != nil || !maps.Equal(p, want) {
		t.Errorf("kept %v, %v; want %v", p, err, want)
	}
	path := filepath.Join(f.dir, pausedFile)
	for _, torn := range []string{"{torn", "", "null"} {
		if err := os.WriteFile(path, []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.LoadPauses(ctx); err == nil {
			t.Errorf("%q is read", torn)
		}
		if err := f.SavePauses(ctx, want); err != nil {
			t.Fatal(err)
		}
		if p, err := f.LoadPauses(ctx); err != nil || !maps.Equal(p, want) {
			t.Errorf("after %q: %v, %v", torn, p, err)
		}
	}
}
