package admin

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/delaybridge/delaybridge/api"
)

// TestDocs: docs/api.md names every verb, and every field of its messages.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for i := range verbs {
		v := &verbs[i]
		row := "](#"
		if !strings.Contains(doc, "| [`"+v.name+"`"+row) || !strings.Contains(doc, v.about) {
			t.Errorf("%s: %q is not in the table of verbs", v.name, v.about)
		}
		for _, m := range []any{v.request, v.answer} {
			for _, f := range names(schemaOf(reflect.TypeOf(m))) {
				if !strings.Contains(doc, "`"+f+"`") && !strings.Contains(doc, `"`+f+`"`) {
					t.Errorf("%s: field %s is not in docs/api.md", v.name, f)
				}
			}
		}
	}
}

// names are the fields of a schema, and of those in it.
func names(s *schema) (out []string) {
	if s == nil {
		return nil
	}
	for name, sub := range s.Properties {
		out = append(append(out, name), names(sub)...)
	}
	return append(out, names(s.Items)...)
}

// TestSchemas: what a schema says is what encoding/json does.
func TestSchemas(t *testing.T) {
	for in, want := range map[any]string{
		api.ByID{}:          `{"type":"object","properties":{"id":{"anyOf":[{"type":"string"},{"type":"object","properties":{"base64":{"type":"string"}},"required":["base64"],"additionalProperties":false}]}},"required":["id"]}`,
		api.Purged{}:        `{"type":"object","properties":{"cursor":{"type":"string"},"purged":{"type":"integer"}},"required":["purged"]}`,
		api.TargetRequest{}: `{"type":"object","properties":{"target":{"type":"string"}},"required":["target"]}`,
	} {
		if got := text(schemaOf(reflect.TypeOf(in))); got != want {
			t.Errorf("%T:\n%s, want\n%s", in, got, want)
		}
	}
	if s := schemaOf(reflect.TypeFor[api.Job]()); s.Properties["due"].Format != "date-time" || len(s.Properties["state"].Enum) != 5 || s.Properties["attempt"].Type != "integer" {
		t.Errorf("%s", text(s))
	}
	if s := schemaOf(reflect.TypeFor[api.ConfigAnswer]()); text(s.Properties["config"]) != `{"type":"object","additionalProperties":{"type":"string"}}` {
		t.Errorf("%s", text(s))
	}
}
