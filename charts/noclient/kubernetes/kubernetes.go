// Package kubernetes, and those beside it, stand in for k8s.io/client-go, as far as
// Helm's engine and lint name it. Helm needs a client for the template function
// "lookup" alone, which asks a cluster; no chart here uses it, and the real one takes
// minutes to compile.
package kubernetes
