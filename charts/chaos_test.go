package charts

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	chaosDir = "chaos"
	twinsDir = "../integration"
	twinNote = "delaybridge.io/twin"
)

// The fields of Chaos Mesh's resources (chaos-mesh.org/v1alpha1) that the chart uses, as
// its definitions of them have them. Its own types need client-go and 800 packages.
type (
	podSelector struct {
		Namespaces     []string          `json:"namespaces"`
		LabelSelectors map[string]string `json:"labelSelectors"`
		NodeSelectors  map[string]string `json:"nodeSelectors"`
	}
	podChoice struct {
		Selector podSelector `json:"selector"`
		Mode     string      `json:"mode"`
	}
	podChaos struct {
		podChoice   `json:",inline"`
		Action      string `json:"action"`
		Duration    string `json:"duration"`
		GracePeriod int64  `json:"gracePeriod"`
	}
	networkDelay struct {
		Latency string `json:"latency"`
		Jitter  string `json:"jitter"`
	}
	networkChaos struct {
		podChoice `json:",inline"`
		Action    string        `json:"action"`
		Direction string        `json:"direction"`
		Duration  string        `json:"duration"`
		Delay     *networkDelay `json:"delay"`
		Target    *podChoice    `json:"target"`
	}
	ioChaos struct {
		podChoice      `json:",inline"`
		Action         string   `json:"action"`
		Errno          uint32   `json:"errno"`
		Percent        int      `json:"percent"`
		Methods        []string `json:"methods"`
		VolumePath     string   `json:"volumePath"`
		Path           string   `json:"path"`
		Duration       string   `json:"duration"`
		ContainerNames []string `json:"containerNames"`
	}
	chaosSchedule struct {
		Schedule          string        `json:"schedule"`
		Type              string        `json:"type"`
		ConcurrencyPolicy string        `json:"concurrencyPolicy"`
		HistoryLimit      int           `json:"historyLimit"`
		PodChaos          *podChaos     `json:"podChaos"`
		NetworkChaos      *networkChaos `json:"networkChaos"`
		IOChaos           *ioChaos      `json:"ioChaos"`
	}
	chaosObject[T any] struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              T `json:"spec"`
	}
)

// experiment is one that was rendered, with its schedule taken off.
type experiment struct {
	metav1.ObjectMeta
	cron    string
	pod     *podChaos
	network *networkChaos
	io      *ioChaos
}

func strictly[T any](t *testing.T, doc string) chaosObject[T] {
	t.Helper()
	var o chaosObject[T]
	data, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err == nil {
		var wrong []error
		wrong, err = kjson.UnmarshalStrict(data, &o)
		err = errors.Join(append(wrong, err)...)
	}
	if err != nil || o.APIVersion != "chaos-mesh.org/v1alpha1" {
		t.Fatalf("%s: %v in\n%s", o.APIVersion, err, doc)
	}
	return o
}

func decodeExperiment(t *testing.T, doc string) experiment {
	t.Helper()
	var kind metav1.TypeMeta
	readYAML(t, strings.NewReader(doc), &kind)
	switch kind.Kind {
	case "PodChaos":
		o := strictly[podChaos](t, doc)
		return experiment{ObjectMeta: o.ObjectMeta, pod: &o.Spec}
	case "NetworkChaos":
		o := strictly[networkChaos](t, doc)
		return experiment{ObjectMeta: o.ObjectMeta, network: &o.Spec}
	case "IOChaos":
		o := strictly[ioChaos](t, doc)
		return experiment{ObjectMeta: o.ObjectMeta, io: &o.Spec}
	case "Schedule":
		o := strictly[chaosSchedule](t, doc)
		e := experiment{o.ObjectMeta, o.Spec.Schedule, o.Spec.PodChaos, o.Spec.NetworkChaos, o.Spec.IOChaos}
		if named := map[string]bool{"PodChaos": e.pod != nil, "NetworkChaos": e.network != nil, "IOChaos": e.io != nil}; !named[o.Spec.Type] || e.cron == "" {
			t.Errorf("type %s in\n%s", o.Spec.Type, doc)
		}
		return e
	}
	t.Fatalf("kind %q in\n%s", kind.Kind, doc)
	return experiment{}
}

// experiments are what values make, by name.
func experiments(t *testing.T, values string) map[string]experiment {
	t.Helper()
	files, err := template(loadChart(t, chaosDir), "chaos", parseValues(t, values))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]experiment{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for _, doc := range documents(text) {
			e := decodeExperiment(t, doc)
			for _, wrong := range append(validation.IsDNS1123Subdomain(e.Name), labelErrors(e.Labels)...) {
				t.Errorf("%s: %s", e.Name, wrong)
			}
			all[e.Name] = e
		}
	}
	return all
}

// experimentKeys are the names of the experiments in values.yaml.
func experimentKeys(t *testing.T) (keys []string) {
	t.Helper()
	for key := range loadChart(t, chaosDir).Values["experiments"].(map[string]any) {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// enabled are values that switch every experiment on, with more for each.
func enabled(t *testing.T, more string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("experiments:\n")
	for _, key := range experimentKeys(t) {
		zones := ""
		if key == "redisZonePartition" {
			zones = ", bridgeZone: a, redisZone: b"
		}
		fmt.Fprintf(&b, "  %s: {enabled: true%s%s}\n", key, zones, more)
	}
	return b.String()
}

func TestChaosLint(t *testing.T) {
	for _, m := range lint.RunAll(chaosDir, nil, "chaos").Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChaosExperiments: all of them decode, with and without a schedule, and the default
// is none.
func TestChaosExperiments(t *testing.T) {
	if n := len(experiments(t, "")); n != 0 {
		t.Errorf("%d experiments by default", n)
	}
	once, often := experiments(t, enabled(t, "")), experiments(t, enabled(t, ", schedule: '0 3 * * 1'"))
	if n := len(experimentKeys(t)); len(once) != n || len(often) != n {
		t.Fatalf("%d and %d of %d experiments", len(once), len(often), n)
	}
	for name, e := range once {
		scheduled := often[name]
		if scheduled.cron != "0 3 * * 1" || e.cron != "" {
			t.Errorf("%s: schedule %q, without one %q", name, scheduled.cron, e.cron)
		}
		if e.cron = scheduled.cron; !reflect.DeepEqual(e, scheduled) {
			t.Errorf("%s is another one with a schedule:\n%+v\n%+v", name, e, scheduled)
		}
	}
	files, err := template(loadChart(t, chaosDir), "chaos", parseValues(t, enabled(t, "")))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/chaos.yaml", manifest(files))
}

// TestChaosHitsTheChart: the labels, the container and the volume are those of the chart
// delaybridge.
func TestChaosHitsTheChart(t *testing.T) {
	files, err := template(loadChart(t, chartDir), "delaybridge", nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := the[*appsv1.StatefulSet](t, objects(t, files)).Spec.Template
	all := experiments(t, enabled(t, ""))
	bridges := &metav1.LabelSelector{MatchLabels: all["chaos-bridge-kill"].pod.Selector.LabelSelectors}
	selects(t, bridges, pod.Labels)
	for name, e := range all {
		if e.network != nil && !reflect.DeepEqual(e.network.Selector.LabelSelectors, bridges.MatchLabels) {
			t.Errorf("%s begins at %v", name, e.network.Selector)
		}
	}
	disk := all["chaos-disk-fault"].io
	selects(t, &metav1.LabelSelector{MatchLabels: disk.Selector.LabelSelectors}, pod.Labels)
	container := pod.Spec.Containers[0]
	if !reflect.DeepEqual(disk.ContainerNames, []string{container.Name}) {
		t.Errorf("the disk of %v fails, the container is %s", disk.ContainerNames, container.Name)
	}
	if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == disk.VolumePath }) {
		t.Errorf("no volume at %s: %v", disk.VolumePath, container.VolumeMounts)
	}
}

func TestChaosValues(t *testing.T) {
	all := experiments(t, `
bridge: {namespace: jobs}
redis: {namespace: data, labels: {app: valkey, app.kubernetes.io/component: null}}
experiments:
  redisNodeKill: {enabled: true}
  redisPartition: {enabled: true, zone: a, duration: 5m}
  redisZonePartition: {enabled: true, bridgeZone: a, redisZone: b}
  redisDelay: {enabled: true, latency: 1.5s}`)
	node := all["chaos-redis-node-kill"].pod
	if node.Mode != "one" || node.Duration != "30s" || node.Action != "pod-failure" {
		t.Errorf("a node of Redis is to be gone for 30 s: %+v", node)
	}
	valkey := podSelector{Namespaces: []string{"data"}, LabelSelectors: map[string]string{"app": "valkey"}}
	if !reflect.DeepEqual(node.Selector, valkey) {
		t.Errorf("it is one of %+v", node.Selector)
	}
	zone := func(name string) map[string]string { return map[string]string{"topology.kubernetes.io/zone": name} }
	within, across := all["chaos-redis-partition"].network, all["chaos-redis-zone-partition"].network
	if !reflect.DeepEqual(within.Selector.NodeSelectors, zone("a")) || !reflect.DeepEqual(within.Target.Selector.NodeSelectors, zone("a")) || within.Duration != "5m" {
		t.Errorf("within a zone: %+v, to %+v", within, within.Target)
	}
	if !reflect.DeepEqual(across.Selector.NodeSelectors, zone("a")) || !reflect.DeepEqual(across.Target.Selector.NodeSelectors, zone("b")) || across.Direction != "both" {
		t.Errorf("across zones: %+v, to %+v", across, across.Target)
	}
	if !reflect.DeepEqual(across.Selector.Namespaces, []string{"jobs"}) || !reflect.DeepEqual(across.Target.Selector.Namespaces, []string{"data"}) {
		t.Errorf("in the namespaces %v and %v", across.Selector.Namespaces, across.Target.Selector.Namespaces)
	}
	if d := all["chaos-redis-delay"].network.Delay; d.Latency != "1.5s" {
		t.Errorf("late by %+v", d)
	}
	for name, e := range experiments(t, enabled(t, "")) {
		if d := durationOf(e); d != "" {
			if _, err := time.ParseDuration(d); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func durationOf(e experiment) string {
	switch {
	case e.pod != nil:
		return e.pod.Duration
	case e.network != nil:
		return e.network.Duration
	}
	return e.io.Duration
}

func TestChaosRefusesValues(t *testing.T) {
	for values, want := range map[string]string{
		"experiments: {bridgeKil: {enabled: true}}":                                        "bridgeKil",
		"experiments: {bridgeKill: {enabled: yes please}}":                                 "enabled",
		"experiments: {bridgeKill: {duration: 30s}}":                                       "duration",
		"experiments: {redisNodeKill: {duration: 30}}":                                     "duration",
		"experiments: {redisNodeKill: {duration: 30 seconds}}":                             "duration",
		"experiments: {redisNodeKill: {schedule: daily}}":                                  "schedule",
		"experiments: {redisNodeKill: {schedule: null}}":                                   "schedule",
		"experiments: {redisZonePartition: {enabled: true}}":                               "bridgeZone",
		"experiments: {redisZonePartition: {enabled: true, bridgeZone: a, redisZone: ''}}": "redisZone",
		"experiments: {redisDelay: {latency: fast}}":                                       "latency",
		"experiments: {diskFault: {errno: 0}}":                                             "errno",
		"experiments: {diskFault: {percent: 101}}":                                         "percent",
		"redis: {labels: {app.kubernetes.io/component: null}}":                             "labels",
		"bridge: {dataPath: data}":                                                         "dataPath",
		"bridge: null":                                                                     "bridge",
		"nats: {namespace: No.Name}":                                                       "namespace",
	} {
		if _, err := template(loadChart(t, chaosDir), "chaos", parseValues(t, values)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %s", values, err, want)
		}
	}
}

// TestChaosTwins: each experiment names a test in integration/ that is there, and the
// README tells of both.
func TestChaosTwins(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(twinsDir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", twinsDir, err)
	}
	var source strings.Builder
	for _, file := range files {
		source.WriteString(readFile(t, file))
	}
	readme := readFile(t, filepath.Join(chaosDir, "README.md"))
	for name, e := range experiments(t, enabled(t, "")) {
		test, sub, _ := strings.Cut(e.Annotations[twinNote], "/")
		if !regexp.MustCompile(`(?m)^func ` + test + `\(t \*testing\.T\)`).MatchString(source.String()) {
			t.Errorf("%s: no test %q in %s", name, test, twinsDir)
		}
		if sub != "" && !regexp.MustCompile(`(name: |disturbed\()"`+regexp.QuoteMeta(sub)+`"`).MatchString(source.String()) {
			t.Errorf("%s: %s has no case %q", name, test, sub)
		}
		if !strings.Contains(readme, "`"+e.Annotations[twinNote]+"`") {
			t.Errorf("%s: README.md does not name %s", name, e.Annotations[twinNote])
		}
	}
	for _, key := range experimentKeys(t) {
		if !strings.Contains(readme, "| `"+key+"` |") {
			t.Errorf("README.md does not tell of %s", key)
		}
	}
}
