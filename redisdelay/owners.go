package redisdelay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delaybridge/delaybridge/job"
)

// maxOwnerCommands is how many commands of WriteOwners go out at once: their
// replies must come within Options.Timeout.
const maxOwnerCommands = 5000

// WriteOwners writes what people read of workers: see docs/workers.md. Each key is
// a command of its own, since in a cluster each has its own slot; nothing is
// repeated, and nothing relies on it: what was not written is there after the next
// heartbeat. Where one job has several updates what is added wins.
func (s *Store) WriteOwners(ctx context.Context, updates []job.OwnerUpdate) error {
	w := &ownerWriter{store: s, pipe: s.client.Pipeline()}
	gone, err := w.tasksOfGone(ctx, updates)
	if err != nil {
		return err
	}
	for i := range updates {
		if err := w.remove(ctx, &updates[i], gone[updates[i].Worker]); err != nil {
			return err
		}
	}
	for i := range updates {
		if err := w.add(ctx, &updates[i]); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}

// ownerWriter collects commands and sends them.
type ownerWriter struct {
	store *Store
	pipe  redis.Pipeliner
}

func (w *ownerWriter) flush(ctx context.Context) error {
	if w.pipe.Len() == 0 {
		return nil
	}
	sent := time.Now()
	_, err := w.pipe.Exec(ctx)
	w.store.observeCall(callOwners, time.Since(sent), err)
	if err != nil {
		return fmt.Errorf("redisdelay: write the keys of workers: %w", denied(addTasksScript, err))
	}
	return nil
}

// room sends what has been collected when it is much.
func (w *ownerWriter) room(ctx context.Context) error {
	if w.pipe.Len() < maxOwnerCommands {
		return nil
	}
	return w.flush(ctx)
}

// tasksOfGone reads which jobs are shown of the workers that are gone: another
// bridge may have written them.
func (w *ownerWriter) tasksOfGone(ctx context.Context, updates []job.OwnerUpdate) (map[string][]string, error) {
	var cmds map[string]*redis.StringSliceCmd
	for i := range updates {
		if u := &updates[i]; u.Gone {
			if cmds == nil {
				cmds = map[string]*redis.StringSliceCmd{}
			}
			cmds[u.Worker] = w.pipe.SMembers(ctx, workerTasksKey(w.store.opts.Prefix, u.Worker))
		}
	}
	if err := w.flush(ctx); err != nil {
		return nil, err
	}
	gone := make(map[string][]string, len(cmds))
	for worker, c := range cmds {
		gone[worker] = c.Val()
	}
	return gone, w.dropMoved(ctx, gone)
}

// dropMoved leaves out the jobs that have been written of another worker since.
func (w *ownerWriter) dropMoved(ctx context.Context, gone map[string][]string) error {
	owners := map[string][]*redis.Cmd{}
	for worker, ids := range gone {
		for _, id := range ids {
			c := redis.NewCmd(ctx, "getrange", taskWorkerKey(w.store.opts.Prefix, id), 0, -1) // "" for none
			_ = w.pipe.Process(ctx, c)
			owners[worker] = append(owners[worker], c)
		}
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	for worker, ids := range gone {
		kept := ids[:0]
		for i, c := range owners[worker] {
			if c.Val() == worker {
				kept = append(kept, ids[i])
			}
		}
		gone[worker] = kept
	}
	return nil
}

// remove takes away what a worker does not have any more, and all of one that is
// gone.
func (w *ownerWriter) remove(ctx context.Context, u *job.OwnerUpdate, tasks []string) error {
	prefix := w.store.opts.Prefix
	if u.Gone {
		w.pipe.Del(ctx, workerBeatKey(prefix, u.Worker))
		w.pipe.Del(ctx, workerTasksKey(prefix, u.Worker))
	} else if len(u.Removed) > 0 {
		w.pipe.SRem(ctx, workerTasksKey(prefix, u.Worker), members(u.Removed)...)
	}
	for _, ids := range [][]string{u.Removed, tasks} {
		for _, id := range ids {
			w.pipe.Del(ctx, taskWorkerKey(prefix, id))
			if err := w.room(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// add writes what a worker has, again with each heartbeat, because Redis may have
// lost it.
func (w *ownerWriter) add(ctx context.Context, u *job.OwnerUpdate) error {
	if u.Gone {
		return nil
	}
	prefix, ttl := w.store.opts.Prefix, w.store.opts.TaskTTL
	if u.Beat {
		w.set(ctx, workerBeatKey(prefix, u.Worker), w.store.opts.BridgeID, w.store.opts.HeartbeatTTL)
	}
	for _, ids := range [][]string{u.Added, u.Kept} {
		w.addTasks(ctx, u.Worker, ids)
		for _, id := range ids {
			w.set(ctx, taskWorkerKey(prefix, id), u.Worker, ttl)
			if err := w.room(ctx); err != nil {
				return err
			}
		}
	}
	if u.Beat && len(u.Added)+len(u.Kept) == 0 {
		w.pipe.PExpire(ctx, workerTasksKey(prefix, u.Worker), ttl)
	}
	return w.room(ctx)
}

// addTasksScript adds to a set that must never be without an end: with two
// commands, the second one may not arrive.
const addTasksScript = "redis.call('SADD', KEYS[1], unpack(ARGV, 2)) return redis.call('PEXPIRE', KEYS[1], ARGV[1])"

// maxAddTasks is what a script can unpack.
const maxAddTasks = 4096

func (w *ownerWriter) addTasks(ctx context.Context, worker string, ids []string) {
	for part := range slices.Chunk(ids, maxAddTasks) {
		args := append(make([]any, 0, 5+len(part)), "eval", addTasksScript, 1, workerTasksKey(w.store.opts.Prefix, worker), w.store.opts.TaskTTL.Milliseconds())
		_ = w.pipe.Process(ctx, redis.NewCmd(ctx, append(args, members(part)...)...))
	}
}

func (w *ownerWriter) set(ctx context.Context, key, value string, ttl time.Duration) {
	_ = w.pipe.Process(ctx, redis.NewStatusCmd(ctx, "set", key, value, "px", ttl.Milliseconds()))
}

func members(ids []string) []any {
	out := make([]any, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}
