package main

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// embeddedStart bounds the start of an embedded NATS server.
const embeddedStart = 10 * time.Second

// startNATS starts a NATS server in this process at the host and port of
// addr; port 0 is a free one. A user in addr, or the one given, is required
// of clients then. JetStream is off.
func startNATS(addr, user, password string) (*server.Server, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "nats" {
		return nil, &inputError{err: fmt.Errorf("nats.url: the server of this command needs one address like nats://127.0.0.1:4222")}
	}
	o := &server.Options{ServerName: program, Host: u.Hostname(), Port: server.DEFAULT_PORT, NoLog: true, NoSigs: true}
	if p := u.Port(); p != "" {
		if o.Port, _ = strconv.Atoi(p); o.Port == 0 { // a URL's port is a number
			o.Port = server.RANDOM_PORT
		}
	}
	setUser(o, u.User, user, password)
	if o.Port != server.RANDOM_PORT {
		if err := portFree(o.Host, o.Port); err != nil {
			return nil, err
		}
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(embeddedStart) {
		srv.Shutdown()
		return nil, fmt.Errorf("NATS server: cannot listen on %s", u.Host)
	}
	return srv, nil
}

// setUser makes the server ask for the user that its clients will name.
func setUser(o *server.Options, inURL *url.Userinfo, user, password string) {
	if inURL != nil {
		user = inURL.Username()
		password, _ = inURL.Password()
	}
	if password == "" {
		o.Authorization = user
		return
	}
	o.Username, o.Password = user, password
}

// portFree tells a taken port apart: the server itself would only log it.
func portFree(host string, port int) error {
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("nats.url: cannot listen on %s: %w; stop what runs there, or choose another address with --nats-url (port 0: a free one)", addr, err)
	}
	return l.Close()
}
