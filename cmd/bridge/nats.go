package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/delaybridge/delaybridge/adapter"
)

const (
	// connectTimeout bounds one attempt to reach one server.
	connectTimeout = 2 * time.Second
	// connectPause is between attempts, connectLogEvery between log lines
	// about them.
	connectPause    = 250 * time.Millisecond
	connectLogEvery = 10 * time.Second
)

// options are how to reach NATS, for any command. What is wrong with a file
// is the error.
func (n *natsConfig) options(name string) ([]nats.Option, error) {
	opts := []nats.Option{nats.Name(name), nats.Timeout(connectTimeout)}
	switch {
	case n.passwordFile != "":
		opts = append(opts, n.passwordOption())
	case n.user != "" && n.password == "":
		opts = append(opts, nats.Token(n.user))
	case n.user != "":
		opts = append(opts, nats.UserInfo(n.user, n.password))
	case n.token != "":
		opts = append(opts, nats.Token(n.token))
	}
	if n.creds != "" {
		opts = append(opts, nats.UserCredentials(n.creds))
	}
	if err := n.checkFiles(); err != nil {
		return nil, &inputError{err: err}
	}
	if n.nkey != "" {
		o, err := nats.NkeyOptionFromSeed(n.nkey)
		if err != nil {
			return nil, &inputError{err: fmt.Errorf("nats.nkey: %s: %w", n.nkey, err)}
		}
		opts = append(opts, o)
	}
	if n.ca != "" {
		opts = append(opts, nats.RootCAs(n.ca))
	}
	if n.cert != "" {
		opts = append(opts, nats.ClientCert(n.cert, n.key))
	}
	if n.tlsFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	if n.inboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(n.inboxPrefix))
	}
	return opts, nil
}

// checkFiles looks at what nats.go reads only once a server answers, and again for
// each new connection. It is the error of a start; later ones wait for better files.
func (n *natsConfig) checkFiles() error {
	if n.creds != "" {
		if err := checkCreds(n.creds); err != nil {
			return fmt.Errorf("nats.creds: %s: %w", n.creds, err)
		}
	}
	if n.passwordFile != "" {
		if _, err := readSecret(n.passwordFile); err != nil {
			return fmt.Errorf("nats.password_file: %w", err)
		}
	}
	if n.ca != "" {
		if _, err := certPool(n.ca); err != nil {
			return fmt.Errorf("nats.ca: %w", err)
		}
	}
	if n.cert != "" {
		if _, err := tls.LoadX509KeyPair(n.cert, n.key); err != nil {
			return fmt.Errorf("nats.cert, nats.key: %s, %s: %w", n.cert, n.key, err)
		}
	}
	return nil
}

func checkCreds(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	user, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return err
	}
	user.Wipe()
	return nil
}

// passwordOption reads the password, or without a user the token, for each new
// connection. A file that cannot be read then is as an empty one: refused, and tried
// again.
func (n *natsConfig) passwordOption() nats.Option {
	read := func() string {
		secret, _ := readSecret(n.passwordFile)
		return secret
	}
	if n.user == "" {
		return nats.TokenHandler(read)
	}
	return nats.UserInfoHandler(func() (string, string) { return n.user, read() })
}

// inbox is the first part of the subjects on which answers arrive.
func (n *natsConfig) inbox() string {
	return cmp.Or(n.inboxPrefix, nats.InboxPrefix[:len(nats.InboxPrefix)-1])
}

func (n *natsConfig) url() string { return strings.Join(n.urls, ",") }

// setHost points n at one server, with the user of its first URL if it has one.
func (n *natsConfig) setHost(hostPort string) {
	u, err := url.Parse(n.urls[0])
	if err != nil {
		u = &url.URL{Scheme: "nats"}
	}
	u.Host = hostPort
	n.urls = []string{u.String()}
}

// dial connects once, for commands that do one thing and end.
func (n *natsConfig) dial(name string, extra ...nats.Option) (*nats.Conn, error) {
	opts, err := n.options(name)
	if err != nil {
		return nil, err
	}
	return n.open(append(opts, extra...))
}

func (n *natsConfig) open(opts []nats.Option) (*nats.Conn, error) {
	key := &nkeyDialer{file: n.nkey, dialer: net.Dialer{Timeout: connectTimeout}}
	if n.nkey != "" {
		opts = append(opts, nats.SetCustomDialer(key))
	}
	nc, err := nats.Connect(n.url(), opts...)
	if err != nil {
		return nil, n.connectError(err)
	}
	key.nc.Store(nc)
	return nc, nil
}

// nkeyDialer makes a connection that comes back use the key that is in the file by
// then. nats.go reads the seed anew by itself, but goes on saying the public key of
// the first one.
type nkeyDialer struct {
	file   string
	dialer net.Dialer
	nc     atomic.Pointer[nats.Conn] // nil until it was connected once
}

// Dial is called with the lock of the connection held, under which Opts.Nkey is read
// next: this is where it can be changed.
func (d *nkeyDialer) Dial(network, addr string) (net.Conn, error) {
	if nc := d.nc.Load(); nc != nil {
		if public, err := publicKey(d.file); err == nil { // else the seed cannot be read either, which is logged
			nc.Opts.Nkey = public
		}
	}
	return d.dialer.Dial(network, addr)
}

func publicKey(seedFile string) (string, error) {
	text, err := os.ReadFile(seedFile)
	if err != nil {
		return "", err
	}
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// connectError says what to do about err; it is an inputError when waiting
// would not help.
func (n *natsConfig) connectError(err error) error {
	servers := withoutSecrets(n.urls...)
	switch {
	case isRefusal(err):
		return &inputError{err: fmt.Errorf("NATS at %s refuses these credentials: %w; check nats.url, nats.user, nats.password, nats.password_file, nats.token, nats.creds and nats.nkey", servers, err)}
	case isTLSProblem(err):
		return &inputError{err: fmt.Errorf("no TLS connection to NATS at %s: %w; check nats.url, nats.ca, nats.cert and nats.key", servers, err)}
	case isTLSRefusal(err):
		return fmt.Errorf("no TLS connection to NATS at %s: %w; check nats.url, nats.ca, nats.cert and nats.key", servers, err)
	}
	return fmt.Errorf("NATS at %s: %w; start it, or set --nats-url", servers, err)
}

func isRefusal(err error) bool {
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

func isTLSProblem(err error) bool {
	var cert *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var plain tls.RecordHeaderError // what answers speaks no TLS
	return errors.As(err, &cert) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &plain) ||
		errors.Is(err, nats.ErrSecureConnRequired) || errors.Is(err, nats.ErrSecureConnWanted)
}

// isTLSRefusal reports whether the server does not like the handshake: it refuses
// this side's certificate, or stops just now, which it does not tell apart.
func isTLSRefusal(err error) bool {
	var op *net.OpError
	return errors.Is(err, nats.ErrTLS) || errors.As(err, &op) && op.Op == "remote error"
}

// connect connects for as long as the bridge runs. It waits for a server that
// is not up yet, until ctx is done.
func (n *natsConfig) connect(ctx context.Context, log *slog.Logger, name string, extra ...nats.Option) (*nats.Conn, error) {
	opts, err := n.options(name)
	if err != nil {
		return nil, err
	}
	opts = append(append(opts, extra...), runningOptions(log, name)...)
	var logged time.Time
	for {
		nc, err := n.open(opts)
		var wrong *inputError
		if err == nil || errors.As(err, &wrong) {
			return nc, err
		}
		if time.Since(logged) >= connectLogEvery {
			logged = time.Now()
			log.Warn("waiting for NATS: not ready until it answers", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(connectPause):
		}
	}
}

// runningOptions keep a connection alive for as long as the process runs.
func runningOptions(log *slog.Logger, name string) []nats.Option {
	var lost atomic.Pointer[nats.Conn]
	var logged time.Time
	return []nats.Option{
		nats.CustomReconnectDelay(func(int) time.Duration {
			if nc := lost.Load(); nc != nil && time.Since(logged) >= connectLogEvery {
				logged = time.Now()
				log.Warn("no NATS connection: trying on", "connection", name, "error", cmp.Or(nc.LastError(), nats.ErrNoServers))
			}
			return connectPause + rand.N(connectPause/2) // not all bridges at once
		}),
		// A server that went away without a word is noticed in half a minute,
		// not in minutes.
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		// Credentials that are being replaced come right again.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			lost.Store(nc)
			if err != nil { // nil: closed by this program
				log.Warn("NATS connection lost: connecting again", "connection", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("NATS connection is back", "connection", name, "server", nc.ConnectedUrlRedacted())
		}),
	}
}

// refused returns an error when the server has refused one of the bridge's own
// subjects on nc: a bridge that may not listen must not seem ready.
func (n *natsConfig) refused(nc *nats.Conn, prefix string) error {
	if err := nc.FlushTimeout(connectTimeout); err != nil {
		return fmt.Errorf("NATS at %s: %w", withoutSecrets(n.urls...), err)
	}
	err := nc.LastError()
	if err == nil {
		return nil
	}
	subject, publish, ok := adapter.Refused(err)
	if !ok || !strings.HasPrefix(subject, prefix+".") && !strings.HasPrefix(subject, n.inbox()+".") {
		return nil
	}
	what := "subscription to"
	if publish {
		what = "publish to"
	}
	return &inputError{err: fmt.Errorf("NATS at %s: this user has no permission for the %s %q, which a bridge needs: allow %s.> and %s.>, and to publish to the targets",
		withoutSecrets(n.urls...), what, subject, prefix, n.inbox())}
}
