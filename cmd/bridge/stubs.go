package main

import (
	"context"
	"errors"
)

var errTodo = errors.New("todo")

func runBench(ctx context.Context, c *command, std stdio, args []string) error     { return errTodo }
func runBenchNATS(ctx context.Context, c *command, std stdio, args []string) error { return errTodo }
func runBenchResponder(ctx context.Context, c *command, std stdio, args []string) error {
	return errTodo
}
