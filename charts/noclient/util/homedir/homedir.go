// Package homedir is named by tests of Helm, which go mod tidy follows.
package homedir
