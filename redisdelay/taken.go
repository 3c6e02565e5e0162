package redisdelay

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
)

// taken are the jobs of merges whose outcome was not seen, because the process
// ended or the reply never came: id -> incarnation. Redis has taken them, so one
// that it does not have any more was finished here, and must not be taken again.
// meta lists them per bridge, for the last Merge on the shard.
type taken struct {
	loaded bool
	jobs   map[string]uint64
	since  []int64 // per shard: the number of the last Merge when they were read
}

// forget drops the jobs of a shard that has lost data: it may lack them.
func (t *taken) forget(shard, shards int) {
	for id := range t.jobs {
		if shardOf(id, shards) == shard {
			delete(t.jobs, id)
		}
	}
}

// takenField is the field of meta with the list.
func (s *Store) takenField() string { return "merged:" + s.opts.BridgeID }

// readTaken reads the lists, and the number of the last Merge per shard.
func (s *Store) readTaken(ctx context.Context) (refs []job.Ref, numbers []int64, err error) {
	pipe := s.client.Pipeline()
	for _, keys := range s.keys {
		pipe.HMGet(ctx, keys[metaKey], s.takenField(), s.kinds[mergeKind].field)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("redisdelay: read what was merged: %w", err)
	}
	for shard, c := range cmds {
		values := c.(*redis.SliceCmd).Val()
		list, _ := values[0].(string)
		saved, _ := values[1].(string)
		refs = append(refs, parseTaken(list, uint16(shard))...)
		numbers = append(numbers, savedNumber(saved))
	}
	return refs, numbers, nil
}

// parseTaken reads a list: of each job the length of its id (1 byte), the id and
// the incarnation (8 bytes).
func parseTaken(list string, shard uint16) (out []job.Ref) {
	for len(list) > 0 {
		end := 1 + int(list[0])
		if len(list) < end+8 {
			break
		}
		out = append(out, job.Ref{ID: strings.Clone(list[1:end]), Shard: shard, Incarnation: binary.BigEndian.Uint64([]byte(list[end : end+8]))})
		list = list[end+8:]
	}
	return out
}

// takenList is the list of all items that one shard gets.
func (m *merging) takenList(sh *mergeShard) (list []byte) {
	for _, i := range sh.index {
		if it := &m.items[i]; !over(it) {
			list = append(append(list, byte(len(it.ID))), it.ID...)
			list = binary.BigEndian.AppendUint64(list, it.Incarnation)
		}
	}
	return list
}

// loadTaken reads the list where it may hold what this process does not know.
// The caller holds the lock of the kind.
func (s *Store) loadTaken(ctx context.Context) error {
	s.mu.Lock()
	loaded := s.taken.loaded
	s.mu.Unlock()
	if loaded {
		return nil
	}
	refs, since, err := s.readTaken(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken.jobs == nil {
		s.taken.jobs = map[string]uint64{}
	}
	for _, r := range refs {
		s.taken.jobs[r.ID] = r.Incarnation
	}
	s.taken.loaded, s.taken.since = true, since
	return nil
}

func (s *Store) takenSince(shard int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken.since[shard]
}

// reloadTaken makes the next Merge read the list again.
func (s *Store) reloadTaken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken.loaded = false
}

// answered notes that the outcome of a job's merge has been seen.
func (s *Store) answered(j *job.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken.jobs[j.ID] == j.Incarnation {
		delete(s.taken.jobs, j.ID)
	}
}

// mergeOptions is the digit that the script takes for the item.
func (s *Store) mergeOptions(it *job.MergeItem) byte {
	options := byte('0')
	if it.Offer {
		options++
	}
	if it.Replace {
		options += 2
	}
	if it.Fresh {
		options += 8
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.taken.jobs[it.ID]; ok && n == it.Incarnation {
		options += 4
	}
	return options
}
