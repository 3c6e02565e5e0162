// Package docs_test holds what the documents say of each other against the
// files of the repository.
package docs_test

import (
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

func TestLinks(t *testing.T) {
	broken, checked, err := brokenLinks(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
	if checked < 100 {
		t.Errorf("only %d links found: the test does not see them", checked)
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	files := fstest.MapFS{
		"README.md": {Data: []byte("# The `Top`, again & again\n[a](docs/a.md#one-two) [b](docs) [c](#the-top-again--again)\n" +
			"[d\nd](docs/a.md#one-two-1) ![e](docs/e.svg) [f](https://example.com/x#y)\n" +
			"```sh\n# no heading\n[g](nowhere)\n```\n`[h](nowhere)`\n")},
		"docs/a.md": {Data: []byte("## One *two*\n## [One](b.md) two\n[up](../README.md) [file](c.md) [out](../../x.md)\n" +
			"[no](../README.md#no-heading) [one](#one) [web](https:/x) <img src=\"f.svg\"> [r]\n\n[r]: g.md\n")},
		"docs/b.md":                {},
		"docs/e.svg":               {},
		"js/node_modules/x/bad.md": {Data: []byte("[a](b)")},
	}
	broken, checked, err := brokenLinks(files)
	want := []string{
		`docs/a.md: "#one": docs/a.md has no such heading`,
		`docs/a.md: "../../x.md": leads out of the repository`,
		`docs/a.md: "../README.md#no-heading": README.md has no such heading`,
		`docs/a.md: "c.md": no such file`,
		`docs/a.md: "f.svg": no such file`,
		`docs/a.md: "g.md": no such file`,
		`docs/a.md: "https:/x": not an address`,
	}
	if slices.Sort(broken); err != nil || !slices.Equal(broken, want) {
		t.Errorf("found, with %v:\n%s\nwant:\n%s", err, strings.Join(broken, "\n"), strings.Join(want, "\n"))
	}
	if checked != 15 {
		t.Errorf("looked at %d links, want 15", checked)
	}
}

var (
	fence     = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code      = regexp.MustCompile("`[^`]+`")
	inline    = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|href)="([^"]+)"|(?m)^\[[^\]]+\]:\s*(\S+)`)
	heading   = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	linked    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	addressed = regexp.MustCompile(`^[a-z]+:`)
)

// brokenLinks looks at the links of all Markdown files under root: files and
// headings must be there, addresses of the web be well-formed.
func brokenLinks(root fs.FS) (broken []string, checked int, err error) {
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() && name != "." && (base[0] == '.' || base == "node_modules" || base == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".md" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, m := range inline.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(string(text), ""), "`"), -1) {
			checked++
			link := m[1] + m[2] + m[3]
			if why := wrong(root, name, link); why != "" {
				broken = append(broken, fmt.Sprintf("%s: %q: %s", name, link, why))
			}
		}
		return nil
	})
	return broken, checked, err
}

// wrong says what is wrong with a link of a file; empty: nothing.
func wrong(root fs.FS, from, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if addressed.MatchString(link) {
		if u.Scheme != "https" && u.Scheme != "http" || !strings.Contains(u.Host, ".") {
			return "not an address"
		}
		return ""
	}
	to := from
	if u.Path != "" {
		to = path.Join(path.Dir(from), u.Path)
	}
	if !fs.ValidPath(to) {
		return "leads out of the repository"
	}
	if _, err := fs.Stat(root, to); err != nil {
		return "no such file"
	}
	if u.Fragment == "" {
		return ""
	}
	text, err := fs.ReadFile(root, to)
	if err != nil || !slices.Contains(anchors(string(text)), u.Fragment) {
		return to + " has no such heading"
	}
	return ""
}

// anchors are the names that GitHub gives to the headings of a document.
func anchors(text string) (names []string) {
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(linked.ReplaceAllString(m[1], "$1")))
		n := seen[name]
		seen[name]++
		if n > 0 {
			name = fmt.Sprintf("%s-%d", name, n)
		}
		names = append(names, name)
	}
	return names
}

// TestPicture: picture.svg is what `make picture` makes of picture.dot, as far
// as its texts tell.
func TestPicture(t *testing.T) {
	dot, svg := texts(t, "picture.dot", `label="([^"]*)"`), texts(t, "picture.svg", `<text [^>]*>([^<]*)</text>`)
	if !slices.Equal(dot, svg) {
		t.Errorf("run `make picture`: picture.dot has\n%q\npicture.svg has\n%q", dot, svg)
	}
}

// texts returns, sorted, what the group of the expression matches in a file.
func texts(t *testing.T, file, expression string) (found []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(string(data), -1) {
		found = append(found, strings.Join(strings.FieldsFunc(html.UnescapeString(m[1]), unicode.IsSpace), " "))
	}
	if len(found) == 0 {
		t.Fatalf("no texts in %s", file)
	}
	slices.Sort(found)
	return found
}
