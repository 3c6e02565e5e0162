package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
)

// pausedFile, in data_dir, says what is paused while Redis cannot be asked.
const pausedFile = "paused.json"

// pauseFile is an adapter.PauseStore on this bridge's disk.
type pauseFile struct {
	mu  sync.Mutex
	dir string
}

// LoadPauses implements adapter.PauseStore.
func (f *pauseFile) LoadPauses(context.Context) (job.Pauses, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read()
}

func (f *pauseFile) read() (job.Pauses, error) {
	path := filepath.Join(f.dir, pausedFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return job.Pauses{}, nil
	}
	var p job.Pauses
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err == nil && p == nil {
		err = errors.New("holds no object")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; mend or remove it, and pause again", path, err)
	}
	return p, nil
}

// SavePauses implements adapter.PauseStore. What cannot be read any more is
// replaced.
func (f *pauseFile) SavePauses(_ context.Context, p job.Pauses) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept, err := f.read()
	if err != nil {
		kept = job.Pauses{}
	}
	if !kept.Merge(p) {
		return nil
	}
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(f.dir, pausedFile), data)
}

// redisPauses is an adapter.PauseStore in Redis.
type redisPauses struct{ *openedStore }

// LoadPauses implements adapter.PauseStore.
func (r redisPauses) LoadPauses(ctx context.Context) (job.Pauses, error) {
	s := r.redis.Load()
	if s == nil {
		return nil, errNoRedisYet
	}
	return s.LoadPauses(ctx)
}

// SavePauses implements adapter.PauseStore.
func (r redisPauses) SavePauses(ctx context.Context, p job.Pauses) error {
	s := r.redis.Load()
	if s == nil {
		return errNoRedisYet
	}
	return s.SavePauses(ctx, p)
}

// pauseStores keep what is paused: on this bridge's disk, and in Redis.
func (o *openedStore) pauseStores(dir string) (out []adapter.PauseStore) {
	if dir != "" {
		out = append(out, &pauseFile{dir: dir})
	}
	if o.redis != nil {
		out = append(out, redisPauses{o})
	}
	return out
}
