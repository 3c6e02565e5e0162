package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/job"
)

// decode reads a body into the struct that into points at; fields that are not in
// the body keep what they have. It is stricter than encoding/json: names are spelt
// exactly so, and given once.
func decode(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return job.ErrHeader.With(`the body is not UTF-8; an id of other bytes is written {"base64":"..."}`)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return job.ErrHeader.With("the body is not a JSON object; an empty one is {}")
	}
	fields, names := fieldsOf(into)
	for dec.More() {
		if err := decodeField(dec, fields, names); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return job.ErrHeader.With("the body goes on after its JSON object")
	}
	return nil
}

// decodeField reads one field, which is left over in fields only if it may follow.
func decodeField(dec *json.Decoder, fields map[string]reflect.Value, names []string) error {
	token, err := dec.Token()
	if err != nil {
		return notJSON(err)
	}
	name, _ := token.(string)
	field, known := fields[name]
	switch {
	case !known && len(names) == 0:
		return job.ErrHeader.With("unknown field %.64q: there are none", name)
	case !known:
		return job.ErrHeader.With("unknown field %.64q: there are %s", name, strings.Join(names, ", "))
	case !field.IsValid():
		return job.ErrHeader.With("field %q is given twice", name)
	}
	fields[name] = reflect.Value{}
	if err := dec.Decode(field.Addr().Interface()); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return notJSON(err)
		}
		return job.ErrHeader.With("field %q is %s", name, wanted(field.Type()))
	}
	return nil
}

func notJSON(err error) error { return job.ErrHeader.With("the body is not JSON: %v", err) }

// fieldsOf returns the fields of the struct that p points at, by their names in
// JSON, and these in order.
func fieldsOf(p any) (fields map[string]reflect.Value, names []string) {
	v := reflect.ValueOf(p).Elem()
	fields = make(map[string]reflect.Value, v.NumField())
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = v.Field(i)
		names = append(names, name)
	}
	return fields, names
}

// wanted says what a field of the type is.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[api.ID]():
		return `text, or {"base64":"..."} for bytes that are no UTF-8`
	case t.Kind() == reflect.Int:
		return "a whole number"
	default:
		return "text"
	}
}
