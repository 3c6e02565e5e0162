package redisdelay

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	server := testredis.Start(t)
	var stores atomic.Int32
	open := func(t *testing.T, prefix string) *Store {
		s, err := Open(context.Background(), Options{
			URL: server.URL(), BridgeID: fmt.Sprintf("b%d", stores.Add(1)), Prefix: prefix,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			if err := client.FlushDB(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			return open(t, "test")
		},
		Peer: func(t *testing.T, s job.Store) job.Store {
			return open(t, s.(*Store).opts.Prefix)
		},
		Stored: job.StoredRedis,
	}.Run(t)
}
