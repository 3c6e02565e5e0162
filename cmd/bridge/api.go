package main

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/adapter/admin"
)

// apiState is what the admin API must know of the configuration in force.
type apiState struct {
	mutations atomic.Bool
	config    atomic.Pointer[map[string]string]
}

// set takes the configuration in force, at the start and after each reload.
func (a *apiState) set(c *config, mutations bool) {
	a.mutations.Store(mutations)
	shown := c.shown()
	a.config.Store(&shown)
}

// serveAPI answers operators, and other bridges, on a connection of its own: a flood
// of jobs must not delay the answers.
func (s *bridgeServer) serveAPI(ctx context.Context, bridge *adapter.Bridge, store *openedStore) (stop func(), err error) {
	s.api.set(&s.cfg, s.cfg.api.mutations)
	if !s.cfg.api.enabled && store.failover == nil {
		return func() {}, nil
	}
	nc, err := s.cfg.nats.connect(ctx, s.log, program+"/"+s.cfg.bridge.ID+"/admin", adapter.ConnOptions()...)
	if err != nil {
		return nil, err
	}
	bridge.WatchErrors(nc)
	service, err := admin.Serve(nc, admin.Options{
		Bridge: bridge, Store: store.Store, Prefix: s.cfg.bridge.Prefix, Version: version(), Logger: s.log,
		Config:    func() map[string]string { return *s.api.config.Load() },
		Mutations: s.api.mutations.Load,
		PeersOnly: !s.cfg.api.enabled,
	})
	if err == nil {
		if err = s.cfg.nats.refused(nc, s.cfg.bridge.Prefix); err != nil {
			service.Stop()
		}
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return func() { service.Stop(); nc.Close() }, nil
}

// shown is the configuration in force by key, without secrets.
func (c *config) shown() map[string]string {
	shown := make(map[string]string, len(keys))
	for _, k := range keys {
		shown[k.name] = k.shown(c.values[k.name].items)
	}
	// What follows from other values when it is not given.
	shown["id"], shown["store"], shown["data_dir"] = c.bridge.ID, c.store, c.dataDir
	shown["local.max_jobs"] = strconv.Itoa(c.localMaxJobs)
	return shown
}

// shown spells values of k without secrets.
func (k *key) shown(items []string) string {
	out := make([]string, len(items))
	for i, item := range items {
		isURL := strings.HasSuffix(k.unit, "URL") || strings.HasSuffix(k.unit, "URLs")
		switch {
		case item == "":
		case isURL && !strings.Contains(item, "://"):
			out[i] = withoutSecrets("nats://" + item)
		case isURL:
			out[i] = withoutSecrets(item)
		case k.secret:
			out[i] = "(secret)"
		case strings.Contains(item, "://"):
			out[i] = withoutSecrets(item)
		default:
			out[i] = item
		}
	}
	return strings.Join(out, ",")
}
