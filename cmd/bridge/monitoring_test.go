package main

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/internal/testredis"
)

// alertRule is a rule of monitoring/rules.yaml.
type alertRule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	readYAML(t, "../../monitoring/rules.yaml", &file)
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) == 0 {
		t.Fatal("no rules")
	}
	return rules
}

func readYAML(t *testing.T, path string, to any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// expressions returns all that the monitoring asks Prometheus, by where it stands.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range readRules(t) {
		out["rule "+r.Alert] = r.Expr
	}
	var tests struct {
		Tests []struct {
			Series []struct{ Series string } `yaml:"input_series"`
		}
	}
	readYAML(t, "../../monitoring/rules_test.yaml", &tests)
	for _, test := range tests.Tests {
		for _, s := range test.Series {
			out["test series "+s.Series] = s.Series
		}
	}
	data, err := os.ReadFile("../../monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Definition != "" { // else it is the data source
			out["variable "+v.Name] = v.Definition
		}
	}
	return out
}

// exposed is what a bridge exposes: the values of each label of each metric.
type exposed map[string]map[string][]string

var (
	sampleLine = regexp.MustCompile(`(?m)^([a-z_]\w*)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

func parseExposed(text string) exposed {
	out := exposed{}
	for _, m := range sampleLine.FindAllStringSubmatch(text, -1) {
		if out[m[1]] == nil {
			out[m[1]] = map[string][]string{}
		}
		for _, l := range labelPair.FindAllStringSubmatch(m[2], -1) {
			out[m[1]][l[1]] = append(out[m[1]][l[1]], l[2])
		}
	}
	return out
}

// ofPrometheus are the metrics and labels that Prometheus adds itself.
var ofPrometheus = exposed{"up": {}}

var targetLabels = []string{"job", "instance"}

var (
	quoted     = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	selector   = regexp.MustCompile(`\b([a-zA-Z_:][\w:]*)\b(\s*\()?(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	rangeOf    = regexp.MustCompile(`\[[^\]]*\]`)
	labelQuery = regexp.MustCompile(`label_values\((\w+), (\w+)\)`)
	operators  = []string{"and", "or", "unless", "bool", "offset"}
)

// check returns what expr asks for that e does not have.
func (e exposed) check(expr string) (wrong []string) {
	if q := labelQuery.FindStringSubmatch(expr); q != nil {
		expr = "sum by (" + q[2] + ") (" + q[1] + ")"
	}
	expr = rangeOf.ReplaceAllString(expr, "")
	var labels []string // that the metrics of expr have
	used := false
	plain := grouping.ReplaceAllString(expr, "")
	for _, m := range selector.FindAllStringSubmatchIndex(plain, -1) {
		name := plain[m[2]:m[3]]
		if m[4] >= 0 || slices.Contains(operators, name) || inside(plain, m[0]) {
			continue // a function, an operator, or a label
		}
		used = true
		series := e[name]
		if series == nil {
			series = ofPrometheus[name]
		}
		if series == nil {
			wrong = append(wrong, "no metric "+name)
			continue
		}
		for l := range series {
			labels = append(labels, l)
		}
		if m[6] >= 0 {
			wrong = append(wrong, checkMatchers(name, series, plain[m[6]:m[7]])...)
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.FieldsFunc(g[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(labels, l) && !slices.Contains(targetLabels, l) {
				wrong = append(wrong, "no label "+l)
			}
		}
	}
	if !used {
		wrong = append(wrong, "no metric at all")
	}
	return wrong
}

// inside reports whether at is within braces or quotes.
func inside(expr string, at int) bool {
	if strings.Count(expr[:at], "{") > strings.Count(expr[:at], "}") {
		return true
	}
	for _, q := range quoted.FindAllStringIndex(expr, -1) {
		if q[0] < at && at < q[1] {
			return true
		}
	}
	return false
}

func checkMatchers(name string, series map[string][]string, text string) (wrong []string) {
	for _, m := range matcher.FindAllStringSubmatch(text, -1) {
		values, ok := series[m[1]]
		switch {
		case slices.Contains(targetLabels, m[1]):
		case !ok:
			wrong = append(wrong, name+" has no label "+m[1])
		case strings.HasPrefix(m[3], "$"): // a variable of the dashboard
		case m[2] == "=" || m[2] == "!=":
			if !slices.Contains(values, m[3]) {
				wrong = append(wrong, name+" has no "+m[1]+" "+m[3])
			}
		default:
			re, err := regexp.Compile("^(?:" + m[3] + ")$")
			if err != nil || !slices.ContainsFunc(values, re.MatchString) {
				wrong = append(wrong, name+" has no "+m[1]+" like "+m[3])
			}
		}
	}
	return wrong
}

// TestMonitoringAsksForWhatIsThere holds rules, their tests and the dashboard against
// a bridge that has just started.
func TestMonitoringAsksForWhatIsThere(t *testing.T) {
	t.Parallel()
	srv, redis := testnats.Start(t), testredis.Start(t)
	at := start(t, "serve", "--nats-url", srv.URL(), "--redis-url", redis.URL(), "--http-addr", "127.0.0.1:0", "--id", "b1").ready()
	_, body := get(t, at["http"]+"/metrics")
	e := parseExposed(body)
	if len(e) < 100 {
		t.Fatalf("%d metrics in\n%s", len(e), body)
	}
	all := expressions(t)
	if len(all) < 80 {
		t.Errorf("only %d expressions found", len(all))
	}
	for where, expr := range all {
		for _, w := range e.check(expr) {
			t.Errorf("%s: %s, in %s", where, w, expr)
		}
	}
	documentedMetrics(t, e)
	exemplarsPossible(t, at["http"])
}

// exemplarsPossible checks that whoever asks for the form that has exemplars gets it.
func exemplarsPossible(t *testing.T, url string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if form := resp.Header.Get("Content-Type"); !strings.HasPrefix(form, "application/openmetrics-text") {
		t.Errorf("served as %s", form)
	}
}

// documentedMetrics checks that docs/metrics.md lists every metric, and no other.
func documentedMetrics(t *testing.T, e exposed) {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = true
	}
	there := map[string]bool{}
	for name, labels := range e {
		if regexp.MustCompile(`^(go_|process_|promhttp_)`).MatchString(name) {
			continue
		}
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, end); base != name && e[base+"_bucket"] != nil {
				name = base
			}
		}
		if there[name] = true; !listed[name] {
			t.Errorf("docs/metrics.md does not list %s (labels %v)", name, labels)
		}
	}
	for name := range listed {
		if !there[name] {
			t.Errorf("docs/metrics.md lists %s, which is not exposed", name)
		}
	}
}

// TestTheCheckOfExpressionsFindsFaults: each of these is wrong.
func TestTheCheckOfExpressionsFindsFaults(t *testing.T) {
	e := parseExposed("a_total{x=\"1\"} 0\na_total{x=\"2\"} 0\nb 1\n")
	for expr, want := range map[string]string{
		`rate(c_total[5m]) > 0`:            "no metric c_total",
		`sum by (y) (rate(a_total[5m]))`:   "no label y",
		`a_total{x="3"} == 1`:              "a_total has no x 3",
		`a_total{y="1"}`:                   "a_total has no label y",
		`b and on (job) d{job="x"}`:        "no metric d",
		`label_values(b, x)`:               "no label x",
		`a_total{x=~"3|4"}`:                "a_total has no x like 3|4",
		`absent(up) or vector(1) > e{} `:   "no metric e",
		`60 * sum(rate(a_totals{}[$__x]))`: "no metric a_totals",
	} {
		if got := e.check(expr); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v, want %s", expr, got, want)
		}
	}
	for _, expr := range []string{`sum by (x, job) (rate(a_total{x!~"1|2"}[5m])) / on (instance) b`, `up{job=~"d.*"} == 0`, `a_total{x="1",instance=~"$instance"} * 2 or b`} {
		if got := e.check(expr); got != nil {
			t.Errorf("%s: %v", expr, got)
		}
	}
}

func TestEveryAlertHasARunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Exp  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, "../../monitoring/rules_test.yaml", &tests)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.Alerts {
			if len(a.Exp) > 0 {
				fires[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
	}
	for _, r := range readRules(t) {
		if !strings.Contains(string(text), "\n## "+r.Alert+"\n") || r.Annotations["runbook_url"] != "docs/runbook.md#"+strings.ToLower(r.Alert) {
			t.Errorf("%s: no section in docs/runbook.md, or another runbook_url: %s", r.Alert, r.Annotations["runbook_url"])
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: severity %q, annotations %v", r.Alert, s, r.Annotations)
		}
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: rules_test.yaml must show when it fires and when it does not", r.Alert)
		}
	}
}
