package failover

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/delaybridge/delaybridge/job"
)

// lost is told by the primary, in the middle of a call, that it has lost data. That
// is made good after the next probe; until then, see unfinished.
func (s *Store) lost(shard int, why string) {
	s.lossCount.Add(1)
	s.lossMu.Lock()
	s.losses = append(s.losses, fmt.Sprintf("shard %d: %s", shard, why))
	s.lossMu.Unlock()
	s.log.Error("Redis has lost data", "shard", shard, "why", why)
	s.ProbeSoon()
}

func (s *Store) pendingLosses() []string {
	s.lossMu.Lock()
	defer s.lossMu.Unlock()
	return slices.Clone(s.losses)
}

// makeGood offers what the journal holds to a primary that has lost data: what
// ended first, then every copy.
func (s *Store) makeGood(ctx context.Context) error {
	losses := s.pendingLosses()
	if len(losses) == 0 {
		return nil
	}
	offered := 0
	if s.journal != nil {
		var err error
		if offered, err = s.offer(ctx); err != nil {
			return fmt.Errorf("journal not offered: %w", err)
		}
	}
	s.lossMu.Lock()
	s.losses = s.losses[len(losses):]
	s.lossMu.Unlock()
	if err := s.remember(); err != nil {
		s.log.Warn("that Redis has lost data will be found again at the next start", "error", err)
	}
	s.o.Observer.DataLoss(losses[0], offered)
	return nil
}

// offerAgain has the journal offered again if the primary has lost data since losses
// was the count: what has come into the journal only now may have been in the
// primary before the loss.
func (s *Store) offerAgain(losses int64) {
	if losses == s.lossCount.Load() {
		return
	}
	s.lossMu.Lock()
	s.losses = append(s.losses, "jobs changed at the same time")
	s.lossMu.Unlock()
	s.ProbeSoon()
}

func (s *Store) offer(ctx context.Context) (offered int, err error) {
	for part := range s.journal.All(mergeBatch) { // what ended comes first
		items := make([]job.MergeItem, len(part))
		for i := range part {
			items[i].Info = part[i].Info
			items[i].Offer = part[i].State != job.Done && part[i].State != job.Cancelled
		}
		res, err := s.mergeItems(ctx, items)
		if err != nil {
			return offered, err
		}
		for i := range res {
			if items[i].Offer && res[i] == job.Merged {
				offered++
			}
		}
	}
	return offered, nil
}

// remember makes durable what the primary has confirmed, so that the next process
// misses it if it goes. While it is known to lack something that is not made good,
// what is remembered stays: the next process must find that, too.
func (s *Store) remember() error {
	p := s.primary.Load()
	if p == nil || s.o.Remember == nil {
		return nil
	}
	s.knownMu.Lock()
	defer s.knownMu.Unlock()
	known := p.Known()
	if bytes.Equal(known, s.known) || len(s.pendingLosses()) > 0 {
		return nil
	}
	if err := s.o.Remember(known); err != nil {
		return fmt.Errorf("journal: remember what Redis has confirmed: %w", err)
	}
	s.known = known
	return nil
}
