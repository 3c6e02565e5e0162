package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fileSource reads a configuration file. Whatever is wrong is reported with
// its line; what is right is returned all the same.
func fileSource(path string) (source, []error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, []error{fmt.Errorf("config: %w", err)}
	}
	r := fileReader{path: path, src: source{}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return r.src, nil
	case err != nil:
		return nil, []error{fmt.Errorf("config: %s: %w", path, err)}
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		r.fail(&more, "one document is all that is read")
	}
	r.section("", doc.Content[0])
	return r.src, r.errs
}

// fileReader collects the values of one file.
type fileReader struct {
	path string
	src  source
	errs []error
}

func (r *fileReader) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.path, n.Line) }

func (r *fileReader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.at(n), fmt.Sprintf(format, args...)))
}

// section reads the keys below prefix, which is empty or ends with a dot.
func (r *fileReader) section(prefix string, n *yaml.Node) {
	n = resolve(n)
	if n.Tag == "!!null" {
		return // nothing but comments
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s: want keys with values", orTop(prefix))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, val := prefix+n.Content[i].Value, n.Content[i+1]
		k := keyNamed(name)
		switch {
		case k != nil && !k.notFile:
			r.key(k, n.Content[i], val)
		case isSection(name):
			r.section(name+".", val)
		default:
			r.fail(n.Content[i], "%s: no such key", name)
		}
	}
}

func (r *fileReader) key(k *key, at, val *yaml.Node) {
	if old, twice := r.src[k.name]; twice {
		r.fail(at, "%s: given before, at %s", k.name, old.from)
		return
	}
	items, ok := itemsOf(k, resolve(val))
	if !ok {
		r.fail(at, "%s: want %s", k.name, wanted(k))
		return
	}
	r.src[k.name] = value{items, r.at(at)}
}

// itemsOf returns the values that n gives for k. A list is a sequence, a text
// as in a flag, or, for pairs with an equals sign, a mapping.
func itemsOf(k *key, n *yaml.Node) ([]string, bool) {
	switch {
	case n.Tag == "!!null":
		return nil, false
	case n.Kind == yaml.ScalarNode:
		return split(k, n.Value), true
	case !k.list:
		return nil, false
	}
	var items []string
	for _, c := range n.Content {
		if c = resolve(c); c.Kind != yaml.ScalarNode {
			return nil, false
		}
		items = append(items, c.Value)
	}
	if n.Kind == yaml.SequenceNode {
		return items, true
	}
	var pairs []string
	for i := 0; i+1 < len(items); i += 2 {
		pairs = append(pairs, items[i]+"="+items[i+1])
	}
	return pairs, true
}

func wanted(k *key) string {
	if k.list {
		return "a list of " + k.unit
	}
	return "one value (" + k.unit + ")"
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// isSection reports whether some key of the file is below name.
func isSection(name string) bool {
	for _, k := range keys {
		if !k.notFile && strings.HasPrefix(k.name, name+".") {
			return true
		}
	}
	return false
}

func orTop(prefix string) string {
	if prefix == "" {
		return "the file"
	}
	return strings.TrimSuffix(prefix, ".")
}
