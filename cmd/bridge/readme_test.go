package main

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeExample keeps the worker in the README the one that is compiled.
func TestReadmeExample(t *testing.T) {
	example, err := os.ReadFile("../../workers/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(example), "\nfunc Example() {\n")
	body, _, ok2 := strings.Cut(rest, "\n}\n")
	if !ok1 || !ok2 {
		t.Fatal("workers/example_test.go has no func Example")
	}
	body = strings.ReplaceAll("\n"+body, "\n\t", "\n")
	if !strings.Contains(string(readme), "```go"+body+"\n```\n") {
		t.Errorf("the README lacks the body of workers.Example, without indentation:%s", body)
	}
}
