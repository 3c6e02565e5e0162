// Package charts tests the Helm charts without a cluster: they are rendered by Helm's
// own engine, and what comes out is decoded strictly into the types of Kubernetes and
// held against the restricted Pod Security Standard.
//
// go test . -update writes anew what follows from other files: the golden renders, the
// chart's README.md, and its copies of the files in monitoring/.
package charts

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the files anew that follow from others")

// types are those that the charts may make.
var types = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// loadChart reads a chart of this directory.
func loadChart(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// parseValues reads values as Helm reads a file of them.
func parseValues(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := loader.LoadValues(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// template is `helm template RELEASE CHART --namespace RELEASE -f values`: the files
// that come out of it, by the name of their templates.
func template(c *chart.Chart, release string, values map[string]any) (map[string]string, error) {
	kube, err := common.ParseKubeVersion("v1.30.0")
	if err != nil {
		return nil, err
	}
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = *kube
	v, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: release, Namespace: release, Revision: 1, IsInstall: true}, caps)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

// manifest puts the files together as helm template prints them.
func manifest(files map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, doc := range documents(files[name]) {
			if !strings.HasSuffix(name, ".txt") {
				fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", name, doc)
			}
		}
	}
	return b.String()
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

func documents(text string) (docs []string) {
	for _, doc := range separator.Split(text, -1) {
		if doc = strings.TrimSpace(doc); doc != "" {
			docs = append(docs, doc)
		}
	}
	return docs
}

// decode reads one document strictly: nothing in it may be unknown to its type.
func decode(doc string) (runtime.Object, error) {
	data, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, err
	}
	o, err := types.New(kind.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	wrong, err := kjson.UnmarshalStrict(data, o)
	return o, errors.Join(append(wrong, err)...)
}

// objects decodes all that was rendered, and checks the names and labels.
func objects(t *testing.T, files map[string]string) (all []runtime.Object) {
	t.Helper()
	seen := map[string]bool{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for _, doc := range documents(text) {
			o, err := decode(doc)
			if err != nil {
				t.Fatalf("%s: %v in\n%s", name, err, doc)
			}
			m, err := meta.Accessor(o)
			if err != nil {
				t.Fatal(err)
			}
			id := o.GetObjectKind().GroupVersionKind().Kind + " " + m.GetName()
			if seen[id] {
				t.Errorf("%s is there twice", id)
			}
			seen[id] = true
			for _, wrong := range append(validation.IsDNS1123Subdomain(m.GetName()), labelErrors(m.GetLabels())...) {
				t.Errorf("%s: %s", id, wrong)
			}
			all = append(all, o)
		}
	}
	return all
}

func labelErrors(labels map[string]string) (wrong []string) {
	for _, err := range metavalidation.ValidateLabels(labels, field.NewPath("labels")) {
		wrong = append(wrong, err.Error())
	}
	return wrong
}

// the returns the one object of type T.
func the[T runtime.Object](t *testing.T, all []runtime.Object) T {
	t.Helper()
	var found []T
	for _, o := range all {
		if x, ok := o.(T); ok {
			found = append(found, x)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T", len(found), *new(T))
	}
	return found[0]
}

// golden compares text with what the file holds.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text == string(want) {
		return
	}
	lines, wanted := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(lines), len(wanted)) {
		if i >= len(lines) || i >= len(wanted) || lines[i] != wanted[i] {
			t.Fatalf("%s: line %d differs:\n have %q\n want %q\nIf that is meant: cd charts && go test . -update", file, i+1, at(lines, i), at(wanted, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// readYAML reads one document into a value.
func readYAML(t *testing.T, r io.Reader, to any) {
	t.Helper()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b.Bytes(), to); err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
}
