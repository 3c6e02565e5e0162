package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
)

// fileCheckEvery is how often the configuration file is looked at.
const fileCheckEvery = 2 * time.Second

// reloadLoop reloads on SIGHUP and when the configuration file changes, until
// ctx is done.
func (s *bridgeServer) reloadLoop(ctx context.Context, bridge *adapter.Bridge, store *openedStore) {
	var tick <-chan time.Time
	if s.cfg.file != "" {
		t := time.NewTicker(fileCheckEvery)
		defer t.Stop()
		tick = t.C
	}
	seen := stampOf(s.cfg.file)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.hup:
		case <-tick:
			if now := stampOf(s.cfg.file); now == seen || now == (stamp{}) {
				continue // unchanged, or just being replaced
			}
		}
		seen = stampOf(s.cfg.file)
		notifyReloading(s.log)
		s.reload(bridge, store)
		notifyReady(s.log)
	}
}

// stamp changes when a file does; it is zero when there is none.
type stamp struct {
	changed time.Time
	size    int64
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{info.ModTime(), info.Size()}
}

// reload reads the configuration anew and applies what can be applied. What is
// wrong changes nothing.
func (s *bridgeServer) reload(bridge *adapter.Bridge, store *openedStore) {
	next, err := s.load()
	if err != nil {
		s.log.Error("configuration not reloaded: the one from before stays in force", "error", err)
		return
	}
	if err := errors.Join(bridge.Reload(next.bridge), store.reload(&next)); err != nil { // both were checked by load
		s.log.Error("configuration not reloaded: the one from before stays in force", "error", err)
		return
	}
	s.level.Set(next.logLevel)
	var applied, restart []string
	for _, name := range s.cfg.changed(&next) {
		if k := keyNamed(name); k.reload {
			applied = append(applied, name)
			s.cfg.values[name] = next.values[name]
		} else {
			restart = append(restart, name)
		}
	}
	s.api.set(&s.cfg, next.api.mutations)
	slices.Sort(applied)
	s.log.Info("configuration reloaded", "changed", strings.Join(applied, ","))
	if len(restart) > 0 {
		s.log.Warn("changes that need a restart are not in force", "keys", strings.Join(restart, ","))
	}
}
