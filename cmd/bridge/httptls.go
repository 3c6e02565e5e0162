package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// tlsFiles is the TLS side of the HTTP server. Its files are looked at for each
// connection, so that a renewed certificate is used without a restart. What cannot
// be read leaves the old one in use.
type tlsFiles struct {
	http *httpConfig
	log  *slog.Logger

	mu      sync.Mutex
	seen    [3]stamp
	current *tls.Config
}

func newTLSFiles(c *httpConfig, log *slog.Logger) (*tlsFiles, error) {
	f := &tlsFiles{http: c, log: log}
	f.seen = f.stamps()
	var err error
	f.current, err = f.load()
	return f, err
}

// serverConfig is for the listener.
func (f *tlsFiles) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.config(), nil },
	}
}

func (f *tlsFiles) stamps() [3]stamp {
	return [3]stamp{stampOf(f.http.cert), stampOf(f.http.key), stampOf(f.http.clientCA)}
}

func (f *tlsFiles) config() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.stamps()
	if now == f.seen {
		return f.current
	}
	f.seen = now
	next, err := f.load()
	if err != nil {
		f.log.Warn("certificate not reloaded: the one from before stays in use", "error", err)
		return f.current
	}
	f.log.Info("certificate reloaded", "file", f.http.cert)
	f.current = next
	return next
}

func (f *tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.http.cert, f.http.key)
	if err != nil {
		return nil, fmt.Errorf("http.cert, http.key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if f.http.clientCA != "" {
		c.ClientAuth = tls.VerifyClientCertIfGiven
		if c.ClientCAs, err = certPool(f.http.clientCA); err != nil {
			return nil, fmt.Errorf("http.client_ca: %w", err)
		}
	}
	return c, nil
}

// certPool reads PEM certificates.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no PEM certificate", file)
	}
	return pool, nil
}
