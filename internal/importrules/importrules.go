// Package importrules keeps the architecture: which package may import which.
// The rules, each with its reason, are a table in rules.go; the package's test
// holds every Go file of the module against it.
//
// Arrows point down only:
//
//	integration
//	cmd
//	adapter   redisdelay   memdelay   client   workers
//	job       subjects
//
// Files named _test.go may import more: anything but cmd and integration from
// outside these. Modules inside the module (directories with a go.mod)
// and directories that the go command ignores are not looked at. Files are
// looked at under every build constraint.
package importrules

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// check returns the packages with Go files under root, the module's root
// directory, and one line for each import that the rules forbid.
func check(root fs.FS) (packages map[string]bool, violations []string, err error) {
	packages = map[string]bool{}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && ignored(root, name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		packages[path.Dir(name)] = true
		found, err := checkFile(root, name)
		violations = append(violations, found...)
		return err
	})
	return packages, violations, err
}

// ignored reports whether dir holds no packages of this module.
func ignored(root fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || base == "node_modules" || base[0] == '.' || base[0] == '_' {
		return true
	}
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

func checkFile(root fs.FS, name string) (violations []string, err error) {
	src, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fset.Position(spec.Pos()), err)
		}
		if why := forbidden(name, imported); why != "" {
			violations = append(violations, fmt.Sprintf("%s: %s must not import %q: %s",
				fset.Position(spec.Pos()), path.Dir(name), imported, why))
		}
	}
	return violations, nil
}

// forbidden returns why the file may not import a package, or "".
func forbidden(file, imported string) string {
	r, ok := ruleFor(path.Dir(file))
	if !ok {
		return "the package has no rule; give it one, with a reason, in internal/importrules/rules.go"
	}
	own, isOwn := strings.CutPrefix(imported, module+"/")
	ownRule, _ := ruleFor(own)
	test := strings.HasSuffix(file, "_test.go")
	switch {
	case isOwn && (ownRule.path == r.path || matchAny(r.own, own)):
		return ""
	case isOwn && test && matchAny(top, own):
		return "tests use what lies below them, not the top of the tree"
	case !isOwn && (isStandard(imported) || r.others && !matchAny(r.except, imported)), test:
		return ""
	}
	return r.why
}

func ruleFor(pkg string) (rule, bool) {
	for _, r := range rules {
		if match(r.path, pkg) {
			return r, true
		}
	}
	return rule{}, false
}

// isStandard reports whether p is in the standard library: the first element
// of every other import path has a dot.
func isStandard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

func matchAny(patterns []string, p string) bool {
	for _, pattern := range patterns {
		if match(pattern, p) {
			return true
		}
	}
	return false
}

func match(pattern, p string) bool {
	base, below := strings.CutSuffix(pattern, "...")
	base = strings.TrimSuffix(base, "/")
	return p == base || below && (base == "" || strings.HasPrefix(p, base+"/"))
}
