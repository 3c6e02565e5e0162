package adapter

import (
	"context"
	"time"
)

const (
	// prunePeriod is how often dead jobs that are too old are removed.
	prunePeriod = time.Minute
	// pruneBatch is how many of them one call of the store removes.
	pruneBatch = 256
)

// pruneLoop removes dead jobs that are older than DeadMaxAge, until ctx is
// done.
func (b *Bridge) pruneLoop(ctx context.Context) {
	ticker := time.NewTicker(min(prunePeriod, b.cfg.DeadMaxAge))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for b.pruneOnce(ctx) == pruneBatch {
		}
	}
}

// pruneOnce removes one batch and returns its size.
func (b *Bridge) pruneOnce(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StoreTimeout)
	defer cancel()
	n, err := b.store.Prune(ctx, b.now().Add(-b.cfg.DeadMaxAge), pruneBatch)
	if err != nil {
		b.storeFailed("prune", err)
		return 0
	}
	b.metrics.pruned.Add(float64(n))
	return n
}
