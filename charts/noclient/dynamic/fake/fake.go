// Package fake is named by tests of Helm, which go mod tidy follows.
package fake
