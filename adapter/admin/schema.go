package admin

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
)

// schema is a JSON schema, as far as the messages need it.
type schema struct {
	Type       any                `json:"type,omitempty"` // a name or several
	Format     string             `json:"format,omitempty"`
	Enum       []string           `json:"enum,omitempty"`
	AnyOf      []*schema          `json:"anyOf,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"`
	Additional any                `json:"additionalProperties,omitempty"` // false, or a schema
	Items      *schema            `json:"items,omitempty"`
}

// metadata describes the verb's endpoints.
func (v *verb) metadata() map[string]string {
	request := schemaOf(reflect.TypeOf(v.request))
	request.Additional = false
	return map[string]string{
		"about":           v.about,
		"request_schema":  text(request),
		"response_schema": text(schemaOf(reflect.TypeOf(v.answer))),
	}
}

func text(s *schema) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // all types are known here
	}
	return string(data)
}

// words are the types of which not every value is used.
var words = map[reflect.Type][]string{
	reflect.TypeFor[job.State]():  {string(job.Pending), string(job.Running), string(job.Done), string(job.Dead), string(job.Cancelled)},
	reflect.TypeFor[job.Result](): {string(job.ResultDone), string(job.ResultRunning), string(job.ResultFinished), string(job.ResultUnknown)},
}

// schemaOf returns the schema of what encoding/json makes of a type.
func schemaOf(t reflect.Type) *schema {
	switch t {
	case reflect.TypeFor[api.Time]():
		return &schema{Type: []string{"string", "null"}, Format: "date-time"}
	case reflect.TypeFor[api.ID]():
		base64 := &schema{Type: "object", Properties: map[string]*schema{"base64": {Type: "string"}}, Required: []string{"base64"}, Additional: false}
		return &schema{AnyOf: []*schema{{Type: "string"}, base64}}
	}
	switch t.Kind() {
	case reflect.String:
		return &schema{Type: "string", Enum: words[t]}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Slice:
		return &schema{Type: "array", Items: schemaOf(t.Elem())}
	case reflect.Map:
		return &schema{Type: "object", Additional: schemaOf(t.Elem())}
	case reflect.Struct:
		return structSchema(t)
	default:
		return &schema{Type: "integer"}
	}
}

func structSchema(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		s.Properties[name] = schemaOf(t.Field(i).Type)
		if options == "" {
			s.Required = append(s.Required, name)
		}
	}
	return s
}
