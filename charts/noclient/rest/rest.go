// Package rest has what a client would be configured with.
package rest

type Config struct{}
