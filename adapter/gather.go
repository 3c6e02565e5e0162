package adapter

import "sync"

// gather is a queue of what waits for a loop that takes all of it at once. Its
// callers never wait.
type gather[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{} // set when something was added
}

func newGather[T any]() *gather[T] { return &gather[T]{wake: make(chan struct{}, 1)} }

func (g *gather[T]) add(items ...T) {
	if len(items) == 0 {
		return
	}
	g.mu.Lock()
	g.items = append(g.items, items...)
	g.mu.Unlock()
	wake(g.wake)
}

// take returns what was added, leaving the memory of reuse in its place.
func (g *gather[T]) take(reuse []T) []T {
	clear(reuse)
	g.mu.Lock()
	defer g.mu.Unlock()
	items := g.items
	g.items = reuse[:0]
	return items
}

func (g *gather[T]) empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.items) == 0
}
