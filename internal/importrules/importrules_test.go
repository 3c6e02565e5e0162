package importrules

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestModule(t *testing.T) {
	packages, violations, err := check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Error(v)
	}
	for _, p := range []string{"job", "internal/importrules"} {
		if !packages[p] {
			t.Errorf("package %s not seen; found only %v", p, packages)
		}
	}
}

func TestModulePath(t *testing.T) {
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(gomod), "module "+module+"\n") {
		t.Errorf("go.mod names another module than %s", module)
	}
}

func TestRulesHaveReasons(t *testing.T) {
	for _, r := range rules {
		if r.why == "" {
			t.Errorf("the rule for %s gives no reason", r.path)
		}
	}
}

// Names that are short enough for a table.
const (
	goRedis = "github.com/redis/go-redis/v9"
	natsGo  = "github.com/nats-io/nats.go"
)

func TestCheckFile(t *testing.T) {
	tests := []struct {
		file, imports string
		allowed       bool
	}{
		{"subjects/a.go", "encoding/base64", true},
		{"subjects/a.go", module + "/job", false},
		{"subjects/a.go", natsGo, false},
		{"job/a.go", "errors", true},
		{"job/a.go", module + "/subjects", false},
		{"job/a.go", module + "/job/jobtest", false},
		{"job/a_test.go", module + "/job/jobtest", true},
		{"job/a.go", "go.uber.org/goleak", false},
		{"job/jobtest/a.go", module + "/job", true},
		{"job/jobtest/a.go", module + "/memdelay", false},
		{"job/jobtest/a.go", natsGo, false},
		{"memdelay/a.go", module + "/job", true},
		{"memdelay/a.go", module + "/job/jobtest", false},
		{"memdelay/a.go", module + "/redisdelay", false},
		{"memdelay/a.go", goRedis, false},
		{"memdelay/a.go", "golang.org/x/sys/unix", true},
		{"redisdelay/a.go", goRedis, true},
		{"redisdelay/a.go", module + "/memdelay", false},
		{"redisdelay/a.go", module + "/adapter", false},
		{"redisdelay/a.go", natsGo, false},
		{"adapter/a.go", natsGo, true},
		{"adapter/a.go", module + "/subjects", true},
		{"adapter/a.go", module + "/adapter/window", true},
		{"adapter/window/a.go", module + "/adapter", true},
		{"adapter/a.go", module + "/memdelay", false},
		{"adapter/a.go", module + "/redisdelay", false},
		{"adapter/a.go", module + "/internal/testnats", false},
		{"adapter/a.go", goRedis, false},
		{"adapter/a_test.go", module + "/memdelay", true},
		{"adapter/a_test.go", module + "/internal/testnats", true},
		{"adapter/a_test.go", goRedis, true},
		{"adapter/a_test.go", module + "/cmd/bridge/flags", false},
		{"adapter/a_test.go", module + "/integration", false},
		{"client/a.go", natsGo, true},
		{"client/a.go", goRedis, false},
		{"client/a.go", module + "/redisdelay", false},
		{"workers/a.go", natsGo, true},
		{"workers/a.go", goRedis + "/internal/x", false},
		{"workers/a.go", module + "/client", false},
		{"workers/a_windows.go", goRedis, false},
		{"cmd/bridge/a.go", module + "/redisdelay", true},
		{"cmd/bridge/a.go", module + "/adapter", true},
		{"cmd/bridge/a.go", "github.com/nats-io/nats-server/v2/server", true},
		{"cmd/bridge/a.go", module + "/internal/testnats", false},
		{"cmd/bridge/a.go", module + "/integration", false},
		{"cmd/bridge/a_test.go", module + "/cmd/bridge/flags", true},
		{"internal/testnats/a.go", module + "/adapter", false},
		{"integration/a.go", module + "/internal/testnats", true},
		{"integration/a_test.go", module + "/integration/checker", true},
		{"integration/a.go", goRedis, true},
		{"helpers/a.go", "fmt", false},      // no rule
		{"helpers/a_test.go", "fmt", false}, // no rule
		{"a.go", "fmt", false},              // no rule
		{"adapters/a.go", "fmt", false},     // not below adapter
	}
	for _, tt := range tests {
		root := fstest.MapFS{tt.file: source(tt.imports)}
		_, violations, err := check(root)
		if err != nil {
			t.Fatalf("%s: %v", tt.file, err)
		}
		if allowed := len(violations) == 0; allowed != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, want %v %q", tt.file, tt.imports, allowed, tt.allowed, violations)
		}
	}
}

func TestViolationSaysWhereAndWhy(t *testing.T) {
	_, violations, err := check(fstest.MapFS{"adapter/deep.go": source(module + "/redisdelay")})
	if err != nil || len(violations) != 1 {
		t.Fatalf("violations %q, error %v; want one violation", violations, err)
	}
	for _, part := range []string{"adapter/deep.go:3:", `"` + module + `/redisdelay"`, "job.Store alone"} {
		if !strings.Contains(violations[0], part) {
			t.Errorf("%q does not say %q", violations[0], part)
		}
	}
}

func TestDirectoriesLeftOut(t *testing.T) {
	bad := source(goRedis)
	packages, violations, err := check(fstest.MapFS{
		"go.mod":                        {Data: []byte("module " + module)},
		"job/job.go":                    source("errors"),
		"job/testdata/a.go":             bad,
		"bench/peers/go.mod":            {Data: []byte("module peers")},
		"bench/peers/a.go":              bad,
		"bench/peers/sub/a.go":          bad,
		"examples/js/node_modules/a.go": bad,
		".cache/a.go":                   bad,
		"_old/a.go":                     bad,
	})
	if err != nil || len(violations) != 0 || len(packages) != 1 || !packages["job"] {
		t.Errorf("packages %v, violations %q, error %v; want package job alone", packages, violations, err)
	}
}

func TestUnreadableFileIsAnError(t *testing.T) {
	_, _, err := check(fstest.MapFS{"job/a.go": {Data: []byte("package job\nimport \"unclosed")}})
	if err == nil || !strings.Contains(err.Error(), "job/a.go") {
		t.Errorf("error %v, want one that names job/a.go", err)
	}
}

func source(imports string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("package p\n\nimport _ \"" + imports + "\"\n")}
}
