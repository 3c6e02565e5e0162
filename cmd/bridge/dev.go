package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

func runDev(ctx context.Context, c *command, std stdio, args []string) error {
	// Its server is here, whatever context is in use elsewhere.
	std.env = slices.DeleteFunc(slices.Clone(std.env), func(kv string) bool { return strings.HasPrefix(kv, "NATS_CONTEXT=") })
	s, err := newServer(c, std, args)
	if err != nil {
		return err
	}
	if s.cfg.store == storeLocal && s.cfg.values["data_dir"].from == "default" {
		s.cfg.dataDir = ""
	}
	srv, err := s.embedNATS()
	if err != nil {
		return err
	}
	defer stopNATS(srv)
	ctx, stop := untilSignal(ctx, s.log)
	defer stop()
	return s.run(ctx)
}

// embedNATS starts a NATS server and points the configuration at it.
func (s *bridgeServer) embedNATS() (*server.Server, error) {
	n := &s.cfg.nats
	if n.passwordFile+n.creds+n.nkey+n.ca+n.cert != "" {
		s.log.Warn("the NATS server of this command knows only a user and a password: nats.password_file, nats.creds, nats.nkey, nats.ca, nats.cert and nats.key are not used")
		n.passwordFile, n.creds, n.nkey, n.ca, n.cert, n.key = "", "", "", "", "", ""
	}
	n.tlsFirst = false
	srv, err := startNATS(n.urls[0], cmp.Or(n.user, n.token), n.password)
	if err != nil {
		return nil, err
	}
	n.setHost(srv.Addr().String())
	return srv, nil
}

func stopNATS(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}
