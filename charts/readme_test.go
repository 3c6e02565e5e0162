package charts

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const (
	valuesBegin = "<!-- values -->\n"
	valuesEnd   = "<!-- end of values -->\n"
)

// TestReadme: the table of values in the chart's README.md follows from values.yaml.
func TestReadme(t *testing.T) {
	const file = "delaybridge/README.md"
	head, rest, ok := strings.Cut(readFile(t, file), valuesBegin)
	_, tail, ok2 := strings.Cut(rest, valuesEnd)
	if !ok || !ok2 {
		t.Fatalf("%s: the lines %q and %q are not there", file, valuesBegin, valuesEnd)
	}
	golden(t, file, head+valuesBegin+valuesTable(t)+valuesEnd+tail)
}

// valuesTable has a row for each value with a comment, and each without is an error.
func valuesTable(t *testing.T) string {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(readFile(t, "delaybridge/values.yaml")), &doc); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	var walk func(prefix string, n *yaml.Node)
	walk = func(prefix string, n *yaml.Node) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			name := prefix + key.Value
			comment := key.HeadComment
			if at := strings.LastIndex(comment, "\n\n"); at >= 0 {
				comment = comment[at+2:] // what is further above is about the file
			}
			if comment == "" && value.Kind == yaml.MappingNode && len(value.Content) > 0 {
				walk(name+".", value)
				continue
			}
			if comment == "" {
				t.Errorf("values.yaml:%d: %s has no comment", key.Line, name)
			}
			comment = strings.ReplaceAll(strings.ReplaceAll(comment, "# ", ""), "\n", " ")
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, defaultOf(t, value), strings.ReplaceAll(comment, "|", `\|`))
		}
	}
	walk("", doc.Content[0])
	return b.String()
}

func defaultOf(t *testing.T, n *yaml.Node) string {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 {
		return "see values.yaml"
	}
	if n.Kind == yaml.ScalarNode {
		if n.Value == "" {
			return ""
		}
		return "`" + n.Value + "`"
	}
	text, err := yaml.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	return "`" + strings.TrimSpace(string(text)) + "`"
}

// TestChartFile: what Artifact Hub shows is of this version.
func TestChartFile(t *testing.T) {
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	a := c.Metadata.Annotations
	var images []struct{ Name, Image string }
	if err := yaml.Unmarshal([]byte(a["artifacthub.io/images"]), &images); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%s:%s", c.Values["image"].(map[string]any)["repository"], c.Metadata.AppVersion); len(images) != 1 || images[0].Image != want {
		t.Errorf("artifacthub.io/images %v, want %s", images, want)
	}
	for _, name := range []string{"category", "license", "links"} {
		if a["artifacthub.io/"+name] == "" {
			t.Errorf("no annotation artifacthub.io/%s", name)
		}
	}
	if len(c.Metadata.Dependencies) > 0 {
		t.Errorf("subcharts: %v", c.Metadata.Dependencies)
	}
}
