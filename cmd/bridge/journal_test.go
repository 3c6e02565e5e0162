package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
)

// fill makes a data_dir with so many jobs in its local store, one call each.
func fill(t *testing.T, jobs int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{localDir, journalDir} {
		s, err := memdelay.Open(filepath.Join(dir, name), memdelay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range jobs {
			if _, err := s.Put(t.Context(), []job.Job{{Target: "orders.x", Due: 1, Payload: []byte("hello")}}); err != nil {
				t.Fatal(err)
			}
		}
		jobs = 0
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// damage changes a byte in the middle of the largest file below dir.
func damage(t *testing.T, dir string) {
	t.Helper()
	var largest string
	var size int64
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && info.Size() > size {
			largest, size = filepath.Join(dir, f.Name()), info.Size()
		}
	}
	data, err := os.ReadFile(largest)
	if err != nil {
		t.Fatal(err)
	}
	// In the middle of what was written: files may be longer than that.
	end := len(strings.TrimRight(string(data), "\x00"))
	data[end/2] ^= 0xff
	if err := os.WriteFile(largest, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	const jobs = 40
	dir := fill(t, jobs)
	r := run(t, "journal", "inspect", "--data-dir", dir, "--json")
	var sections []struct {
		Name    string
		Damaged bool
		Report  struct{ Pending int }
	}
	if err := json.Unmarshal([]byte(r.out), &sections); r.code != 0 || err != nil || len(sections) != 2 ||
		sections[0].Name != "local" || sections[0].Report.Pending != jobs || sections[1].Name != "journal" || sections[1].Report.Pending != 0 {
		t.Errorf("exit %d, %s%s, %v", r.code, r.out, r.err, err)
	}
	damage(t, filepath.Join(dir, localDir))
	for _, d := range []string{dir, filepath.Join(dir, localDir)} { // the latter is what the log itself names
		if r := run(t, "journal", "inspect", "--data-dir", d); r.code != 1 || !strings.Contains(r.out, "damaged at offset") || !strings.Contains(r.err, "journal salvage --data-dir "+d) {
			t.Errorf("exit %d, %s%s", r.code, r.out, r.err)
		}
	}
	if r := run(t, "serve", "--store", "local", "--data-dir", dir, "--http-addr", "off"); r.code != 1 || !strings.Contains(r.err, dir) || !strings.Contains(r.err, "journal inspect") {
		t.Errorf("serve: exit %d, %s", r.code, r.err)
	}
	if r := run(t, "journal", "salvage", "--data-dir", dir, "--to", dir); r.code != 1 || !strings.Contains(r.err, "not empty") {
		t.Errorf("salvage over the old one: exit %d, %s%s", r.code, r.out, r.err)
	}
	to := filepath.Join(t.TempDir(), "new")
	if r := run(t, "journal", "salvage", "--data-dir", dir, "--to", to); r.code != 0 || !strings.Contains(r.err, "missing from the copy: local") {
		t.Errorf("salvage: exit %d, %s%s", r.code, r.out, r.err)
	}
	r = run(t, "journal", "inspect", "--data-dir", to, "--json")
	if err := json.Unmarshal([]byte(r.out), &sections); r.code != 0 || err != nil || sections[0].Report.Pending < jobs/3 || sections[0].Report.Pending >= jobs {
		t.Errorf("the copy: exit %d, %s%s, %v", r.code, r.out, r.err, err)
	}
}
