package failover

import (
	"context"

	"github.com/delaybridge/delaybridge/job"
)

// Reconcile compares all the journal with the primary, once.
func (s *Store) Reconcile(ctx context.Context) {
	s.forgetEnds()
	at := &reconciling{state: job.Pending}
	for more := true; more; {
		more, _ = s.reconcile(ctx, at)
	}
}
