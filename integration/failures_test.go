package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestFailureMatrix: the tests that docs/failures.md names are where it says.
func TestFailureMatrix(t *testing.T) {
	const doc = "../docs/failures.md"
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	names := regexp.MustCompile("`(Test\\w+)(?:/([\\w-]+))?`(?:\\]\\(([^)]+)\\))?").FindAllStringSubmatch(read(doc), -1)
	if len(names) < 50 {
		t.Errorf("only %d names of tests found in %s", len(names), doc)
	}
	files := map[string]string{} // by the test in it, of those that are linked
	for _, n := range names {
		if n[3] != "" {
			files[n[1]] = filepath.Join(filepath.Dir(doc), n[3])
		}
	}
	faults := map[string]bool{}
	for _, list := range [][]fault{outages, flaws, kills} {
		for _, f := range list {
			faults[f.name] = true
		}
	}
	for _, n := range names {
		file := files[n[1]] // of the same test elsewhere in the document
		if n[3] != "" {
			file = filepath.Join(filepath.Dir(doc), n[3])
		}
		if file == "" {
			t.Errorf("%s names %s without a link", doc, n[1])
		} else if !regexp.MustCompile(`(?m)^func ` + n[1] + `\(`).MatchString(read(file)) {
			t.Errorf("%s: no %s in %s", doc, n[1], file)
		}
		if n[2] != "" && !faults[n[2]] {
			t.Errorf("%s: no fault %s", doc, n[2])
		}
	}
}
