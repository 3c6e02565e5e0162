package charts

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const chartDir = "delaybridge"

// rows are values that must do; those of the chart's examples/ come on top.
var rows = map[string]string{
	"default": "",
	"full":    "", // testdata/full.yaml
	"redis":   "redis: {url: 'redis://valkey:6379/0'}",
	"secrets": `
nats: {existingSecret: of-nats, userKey: u, passwordKey: p}
redis: {existingSecret: of-redis, urlKey: url, userKey: u, passwordKey: p}`,
	"nkey":          "nats: {existingSecret: of-nats, nkeyKey: seed, tls: {existingSecret: t, certKey: tls.crt, keyKey: tls.key}, tlsFirst: true, inboxPrefix: _INBOX.jobs}",
	"token":         "nats: {existingSecret: of-nats, tokenKey: token, url: 'nats://a:4222,tls://b:4222'}",
	"named user":    "nats: {existingSecret: of-nats, user: bridge, passwordKey: p}",
	"redis TLS":     "redis: {url: 'rediss://valkey:6379', user: jobs, existingSecret: r, passwordKey: p, tls: {existingSecret: t, certKey: c, keyKey: k}}",
	"https":         "{http: {port: 8443, tls: {existingSecret: t, clientCAKey: ca.crt}}, podMonitor: {enabled: true, interval: 1m30s, tlsConfig: {ca: {secret: {name: t, key: ca.crt}}}}}",
	"no volume":     "persistence: {enabled: false}",
	"no extras":     "{podDisruptionBudget: {enabled: false}, serviceAccount: {create: false}, tests: {enabled: false}}",
	"configuration": "config: {drain: 1m, local: {max_bytes: 256MiB, max_jobs: 5000}, log: {level: debug, format: json}, dispatch: {lanes: {'orders.>': 500}}, targets: {allow: ['orders.>']}, failover: {failure_ratio: 0.3, slow_factor: 5}, api: {enabled: false}}",
	"monitoring":    "{serviceMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}, dashboard: {enabled: true}, networkPolicy: {enabled: true}}",
	"digest":        "image: {repository: registry.example:5000/delaybridge, digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000', pullPolicy: Always}",
	"OpenShift":     "podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}",
	"subchart":      "global: {imageRegistry: x}",
	"names":         "{nameOverride: jobs, fullnameOverride: bridge}",
	"long name":     "nameOverride: a-name-that-is-nearly-as-long-as-it-may-be-for-one-k",
}

func valuesOf(t *testing.T, row string) map[string]any {
	t.Helper()
	switch {
	case row == "full":
		return parseValues(t, readFile(t, "testdata/full.yaml"))
	case strings.HasPrefix(row, "example "):
		return parseValues(t, readFile(t, filepath.Join(chartDir, "examples", strings.TrimPrefix(row, "example "))))
	}
	return parseValues(t, rows[row])
}

// forEachRow runs test on what comes of every row of the matrix.
func forEachRow(t *testing.T, test func(t *testing.T, row string, files map[string]string)) {
	names := slices.Collect(maps.Keys(rows))
	examples, err := filepath.Glob(filepath.Join(chartDir, "examples", "*.yaml"))
	if err != nil || len(examples) < 4 {
		t.Fatalf("examples %v, %v", examples, err)
	}
	for _, file := range examples {
		parseValues(t, readFile(t, file))
		if !strings.HasSuffix(file, "-chart.yaml") { // else they are for another chart
			names = append(names, "example "+filepath.Base(file))
		}
	}
	c := loadChart(t, chartDir)
	for _, row := range names {
		release := "delaybridge"
		if row == "long name" {
			release = "r" + strings.Repeat(".x", 26) // as long as Helm allows
		}
		files, err := template(c, release, valuesOf(t, row))
		if err != nil {
			t.Fatalf("%s: %v", row, err)
		}
		t.Run(row, func(t *testing.T) { test(t, row, files) })
	}
}

func TestLint(t *testing.T) {
	for _, m := range lint.RunAll(chartDir, nil, "delaybridge").Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

func TestRendered(t *testing.T) {
	t.Parallel()
	forEachRow(t, func(t *testing.T, row string, files map[string]string) {
		all := objects(t, files)
		s := the[*appsv1.StatefulSet](t, all)
		pod := &s.Spec.Template
		if row != "full" { // which puts a container beside it that does not
			restricted(t, pod.ObjectMeta, &pod.Spec)
		}
		selects(t, s.Spec.Selector, pod.Labels)
		if *s.Spec.Replicas != 1 || strings.ContainsAny(s.Name, ".") || len(s.Name) > 52 || pod.Spec.Containers[0].Name != "delaybridge" {
			t.Errorf("StatefulSet %s, %d replicas, first container %s", s.Name, *s.Spec.Replicas, pod.Spec.Containers[0].Name)
		}
		mounted(t, s)
		for _, o := range all {
			switch o := o.(type) {
			case *corev1.Pod:
				restricted(t, o.ObjectMeta, &o.Spec)
				if labels := metav1.FormatLabelSelector(s.Spec.Selector); reflect.DeepEqual(o.Labels["app.kubernetes.io/component"], pod.Labels["app.kubernetes.io/component"]) {
					t.Errorf("the pod of helm test is one of %s", labels)
				}
			case *corev1.Service:
				selects(t, &metav1.LabelSelector{MatchLabels: o.Spec.Selector}, pod.Labels)
			case *policyv1.PodDisruptionBudget:
				selects(t, o.Spec.Selector, pod.Labels)
			case *networkingv1.NetworkPolicy:
				selects(t, &o.Spec.PodSelector, pod.Labels)
			case *monitoringv1.PodMonitor:
				selects(t, &o.Spec.Selector, pod.Labels)
			case *monitoringv1.ServiceMonitor:
				monitored(t, o, all)
			}
		}
	})
}

// restricted holds a pod against the restricted Pod Security Standard.
func restricted(t *testing.T, m metav1.ObjectMeta, spec *corev1.PodSpec) {
	t.Helper()
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	result := policy.AggregateCheckResults(e.EvaluatePod(podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}, &m, spec))
	if !result.Allowed {
		t.Errorf("not restricted: %s", result.ForbiddenDetail())
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("the pod gets a token")
	}
	if c := spec.Containers[0].SecurityContext; c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem {
		t.Error("its root can be written to")
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, labels map[string]string) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range s.MatchLabels {
		if len(s.MatchLabels) < 2 || labels[k] != v {
			t.Errorf("%s does not select the pods %v", selector, labels)
		}
	}
}

// mounted checks that each mount has a volume, and each volume a mount.
func mounted(t *testing.T, s *appsv1.StatefulSet) {
	t.Helper()
	volumes, mounts := map[string]bool{}, map[string]bool{}
	for _, v := range s.Spec.Template.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range s.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, c := range append(s.Spec.Template.Spec.Containers, s.Spec.Template.Spec.InitContainers...) {
		for _, m := range c.VolumeMounts {
			mounts[m.Name] = true
		}
	}
	if !maps.Equal(volumes, mounts) {
		t.Errorf("volumes %v, mounts %v", volumes, mounts)
	}
}

// monitored checks that Prometheus finds one service, and its port.
func monitored(t *testing.T, m *monitoringv1.ServiceMonitor, all []runtime.Object) {
	t.Helper()
	found := 0
	for _, o := range all {
		s, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		matches := true
		for k, v := range m.Spec.Selector.MatchLabels {
			matches = matches && s.Labels[k] == v
		}
		if matches {
			found++
		}
	}
	if e := m.Spec.Endpoints[0]; found != 1 || !e.HonorLabels || e.Port != "http" {
		t.Errorf("the ServiceMonitor finds %d services: %+v", found, e)
	}
}

// TestGolden shows in a diff what a change of the chart does.
func TestGolden(t *testing.T) {
	c := loadChart(t, chartDir)
	for row, file := range map[string]string{"default": "../docs/manifests.yaml", "full": "testdata/full.golden.yaml"} {
		files, err := template(c, "delaybridge", valuesOf(t, row))
		if err != nil {
			t.Fatal(err)
		}
		head := "# What `helm template delaybridge charts/delaybridge --namespace delaybridge` makes of the default values.\n"
		if row == "full" {
			head = "# What the chart makes of full.yaml.\n"
		}
		golden(t, file, head+manifest(files))
	}
}

// TestCopies: a chart reads nothing outside its directory.
func TestCopies(t *testing.T) {
	for _, name := range []string{"rules.yaml", "dashboard.json"} {
		golden(t, filepath.Join(chartDir, "files", name), readFile(t, filepath.Join("../monitoring", name)))
	}
}

// TestRules: what the chart renders are the alerts of monitoring/, of which no template
// ate what is in braces, and promtool can read them.
func TestRules(t *testing.T) {
	files, err := template(loadChart(t, chartDir), "delaybridge", valuesOf(t, "monitoring"))
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, files)
	rule := the[*monitoringv1.PrometheusRule](t, all)
	var want monitoringv1.PrometheusRuleSpec
	readYAML(t, strings.NewReader(readFile(t, "../monitoring/rules.yaml")), &want)
	if len(want.Groups) == 0 || !reflect.DeepEqual(rule.Spec, want) {
		t.Errorf("the PrometheusRule differs from monitoring/rules.yaml")
	}
	spec, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, spec, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "rules", "--lint-fatal", file).CombinedOutput(); err != nil {
		t.Errorf("promtool (make test-charts installs it): %v\n%s", err, out)
	}
	found := false
	for _, o := range all {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Labels["grafana_dashboard"] == "1" {
			found = m.Data["delaybridge.json"] == strings.TrimSpace(readFile(t, "../monitoring/dashboard.json"))
		}
	}
	if !found {
		t.Error("no ConfigMap has the dashboard as monitoring/dashboard.json has it")
	}
}

// TestUpgrade: what Kubernetes lets nobody change must not depend on a version, or on a
// value that has nothing to do with it.
func TestUpgrade(t *testing.T) {
	fixed := func(version, row string) any {
		c := loadChart(t, chartDir)
		c.Metadata.Version, c.Metadata.AppVersion = version, version
		files, err := template(c, "delaybridge", valuesOf(t, row))
		if err != nil {
			t.Fatal(err)
		}
		s := the[*appsv1.StatefulSet](t, objects(t, files)).Spec
		return []any{s.Selector, s.ServiceName, s.PodManagementPolicy, s.VolumeClaimTemplates}
	}
	want := fixed("0.1.0", "default")
	for _, row := range []string{"default", "redis", "monitoring", "configuration", "https"} {
		if got := fixed("9.9.9", row); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: an upgrade is refused:\n%+v\n%+v", row, got, want)
		}
	}
}

func podOf(t *testing.T, values string) (*corev1.PodTemplateSpec, error) {
	t.Helper()
	files, err := template(loadChart(t, chartDir), "delaybridge", parseValues(t, values))
	if err != nil {
		return nil, err
	}
	return &the[*appsv1.StatefulSet](t, objects(t, files)).Spec.Template, nil
}

func TestGracePeriodFollowsDrain(t *testing.T) {
	for drain, want := range map[string]int64{"10s": 30, "1m30s": 110, "500ms": 21, "1h": 3620, "1.5m": 110, "1ns": 21, "1d": 86420} {
		p, err := podOf(t, "config: {drain: "+drain+"}")
		if err != nil {
			t.Fatal(err)
		}
		if got := *p.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("drain %s: %d s, want %d", drain, got, want)
		}
	}
}

// TestMemory: the bridge takes the limit from its control group, which also holds where
// something else than the chart sets it; a variable of the chart would hide it.
func TestMemory(t *testing.T) {
	p, err := podOf(t, "")
	if err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	if c.Resources.Limits.Memory().IsZero() {
		t.Error("no memory limit")
	}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" || e.Name == "GOGC" {
			t.Errorf("%s is set", e.Name)
		}
	}
}

var keyRow = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| (.+?) \\| (.*?) \\| (yes|no) \\|")

// bridgeKeys are the rows of docs/configuration.md: key, value, default, reloads.
func bridgeKeys(t *testing.T) [][]string {
	t.Helper()
	keys := keyRow.FindAllStringSubmatch(readFile(t, "../docs/configuration.md"), -1)
	if len(keys) < 60 {
		t.Fatalf("only %d keys in docs/configuration.md", len(keys))
	}
	return keys
}

// TestRestartsOnlyWhereNeeded: a change of a key that the bridge reloads does not restart
// the pod, one of another key does.
func TestRestartsOnlyWhereNeeded(t *testing.T) {
	t.Parallel()
	before, err := podOf(t, "")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, k := range bridgeKeys(t) {
		sample, ok := samples[k[2]]
		if !ok || slices.Contains(ofTheChart, k[1]) {
			continue
		}
		if special, ok := samples[k[1]]; ok {
			sample = special
		}
		section, name, nested := strings.Cut(k[1], ".")
		values := "config: {" + section + ": " + sample + "}"
		if nested {
			values = "config: {" + section + ": {" + name + ": " + sample + "}}"
		}
		p, err := podOf(t, values)
		if err != nil {
			t.Errorf("%s: %v", k[1], err)
			continue
		}
		checked++
		restarts := !maps.Equal(p.Annotations, before.Annotations)
		if restarts == (k[4] == "yes") {
			t.Errorf("%s reloads: %s, but a change of it restarts the pod: %t", k[1], k[4], restarts)
		}
	}
	if checked < 50 {
		t.Errorf("only %d keys checked", checked)
	}
}
