package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// redisAccess is how to be let in by Redis, beside its URL.
type redisAccess struct {
	user, password string
	passwordFile   string
	ca, cert, key  string // files
}

// redisKeys keep what is secret out of the URL, and set TLS up.
var redisKeys = []*key{
	{name: "redis.user", unit: "text", defHelp: "that of the URL",
		help: "ACL user", set: text(func(c *config) *string { return &c.redisAccess.user })},
	{name: "redis.password", unit: "text", secret: true, defHelp: "that of the URL",
		help: "password of the user", set: text(func(c *config) *string { return &c.redisAccess.password })},
	{name: "redis.password_file", unit: "file",
		help: "file with the password, read for each new connection", set: file(func(c *config) *string { return &c.redisAccess.passwordFile })},
	{name: "redis.ca", unit: "file", defHelp: "those of the system",
		help: "PEM certificates that the server's must be signed by; needs rediss://", set: file(func(c *config) *string { return &c.redisAccess.ca })},
	{name: "redis.cert", unit: "file",
		help: "PEM certificate to show Redis, read for each new connection; needs rediss://", set: file(func(c *config) *string { return &c.redisAccess.cert })},
	{name: "redis.key", unit: "file",
		help: "PEM private key of the certificate", set: file(func(c *config) *string { return &c.redisAccess.key })},
}

// checkRedis checks what concerns several keys.
func (c *config) checkRedis() (errs []error) {
	a := &c.redisAccess
	fail := func(text string) { errs = append(errs, errors.New(text)) }
	u, err := url.Parse(c.redisURL)
	if err != nil {
		return nil // reported already
	}
	_, inURL := u.User.Password()
	switch {
	case a.password != "" && a.passwordFile != "":
		fail("redis.password, redis.password_file: both are set")
	case inURL && a.password+a.passwordFile != "":
		fail("redis.password, redis.password_file: the URL has a password, too")
	case a.user != "" && u.User.Username() != "":
		fail("redis.user: the URL has a user, too")
	case a.user != "" && !inURL && a.password+a.passwordFile == "":
		fail("redis.user: needs redis.password or redis.password_file")
	}
	if (a.cert == "") != (a.key == "") {
		fail("redis.cert, redis.key: one is set without the other")
	}
	if a.ca+a.cert != "" && u.Scheme != "rediss" {
		fail("redis.ca, redis.cert: need TLS: begin redis.url with rediss://")
	}
	return errs
}

// adapt puts a into the settings of a client.
func (a *redisAccess) adapt(o *redis.Options) error {
	if a.user != "" {
		o.Username = a.user
	}
	if a.password != "" {
		o.Password = a.password
	}
	if a.passwordFile != "" {
		user := o.Username
		provide := func(context.Context) (string, string, error) {
			password, err := readSecret(a.passwordFile)
			if err != nil {
				return "", "", fmt.Errorf("redis.password_file: %w", err)
			}
			return user, password, nil
		}
		if _, _, err := provide(context.Background()); err != nil {
			return err
		}
		o.CredentialsProviderContext = provide
	}
	if a.ca != "" {
		pool, err := certPool(a.ca)
		if err != nil {
			return fmt.Errorf("redis.ca: %w", err)
		}
		o.TLSConfig.RootCAs = pool
	}
	if a.cert != "" {
		if _, err := tls.LoadX509KeyPair(a.cert, a.key); err != nil {
			return fmt.Errorf("redis.cert, redis.key: %w", err)
		}
		o.TLSConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(a.cert, a.key)
			return &pair, err
		}
	}
	return nil
}

// readSecret reads a file that holds one secret, which editors end with a newline. An
// empty one is an error: the login would be that of nobody.
func readSecret(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return secret, nil
}
