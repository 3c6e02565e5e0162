package memdelay_test

import (
	"testing"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
	"github.com/delaybridge/delaybridge/memdelay"
)

func TestConformance(t *testing.T) {
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			s := memdelay.New(memdelay.Options{})
			t.Cleanup(func() { s.Close() })
			return s
		},
		Stored: job.StoredMemory,
	}.Run(t)
}
