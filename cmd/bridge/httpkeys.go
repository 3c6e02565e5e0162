package main

import (
	"errors"
	"fmt"
	"strconv"
)

// httpConfig is where pages are served, and to whom.
type httpConfig struct {
	addr                string // empty: nowhere
	cert, key, clientCA string // files
	insecure, pprof     bool
}

// httpKeys say who can see the pages.
var httpKeys = []*key{
	{name: "http.insecure", def: "false", unit: "true or false",
		help: "allow http.addr to be reached from other machines without TLS", set: yesNo(func(c *config) *bool { return &c.http.insecure })},
	{name: "http.cert", unit: "file",
		help: "PEM certificate of the HTTP server; switches TLS on. It, its key and http.client_ca are read again when they change", set: file(func(c *config) *string { return &c.http.cert })},
	{name: "http.key", unit: "file",
		help: "PEM private key of the certificate", set: file(func(c *config) *string { return &c.http.key })},
	{name: "http.client_ca", unit: "file",
		help: "PEM certificates, one of which must have signed the client's; /healthz, /startupz and /readyz need none", set: file(func(c *config) *string { return &c.http.clientCA })},
	{name: "http.pprof", def: "false", unit: "true or false",
		help: "serve /debug/pprof/, with which a client can slow the bridge down", set: yesNo(func(c *config) *bool { return &c.http.pprof })},
}

// yesNo takes true or false.
func yesNo(field func(*config) *bool) setter {
	return one(func(c *config, v string) (err error) {
		if *field(c), err = strconv.ParseBool(v); err != nil {
			return fmt.Errorf("%q is not true or false", v)
		}
		return nil
	})
}

// check refuses to show pages to the network unless that was meant.
func (c *httpConfig) check() (errs []error) {
	if (c.cert == "") != (c.key == "") {
		errs = append(errs, errors.New("http.cert, http.key: one is set without the other"))
	}
	if c.clientCA != "" && c.cert == "" {
		errs = append(errs, errors.New("http.client_ca: needs TLS: set http.cert and http.key"))
	}
	if c.addr != "" && c.cert == "" && !c.insecure && !isLoopback(c.addr) {
		errs = append(errs, fmt.Errorf("http.addr: %s can be reached from other machines, in plaintext: set http.cert and http.key for TLS, http.insecure: true if that is meant, or an address on 127.0.0.1", c.addr))
	}
	return errs
}
