package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A context of the nats command line says how to reach a NATS system. It is a file
// of JSON, <config>/nats/context/<name>.json, where <config> is XDG_CONFIG_HOME or
// ~/.config; the name of the selected one is in <config>/nats/context.txt.

// natsContext is what is read of one.
type natsContext struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	InboxPrefix string `json:"inbox_prefix"`
	TLSFirst    bool   `json:"tls_first"`

	// What cannot be followed is refused: without it the connection would be another.
	NSC        string `json:"nsc"`
	SocksProxy string `json:"socks_proxy"`
	UserJWT    string `json:"user_jwt"`
	UserSeed   string `json:"user_seed"`
	WinStore   string `json:"windows_cert_store"`
}

// credentialKeys are the keys that say who connects.
var credentialKeys = []string{"nats.user", "nats.password", "nats.password_file", "nats.token", "nats.creds", "nats.nkey"}

// withContext appends what the context that sources name gives; with selected, and
// no address in sources, that is the selected context.
func withContext(sources []source, environ []string, selected bool) ([]source, []error) {
	named := pick(sources, "nats.context")
	name := strings.Join(named.items, "")
	home := contextHome{environ}
	switch {
	case name != "":
	case !selected || pick(sources, "nats.url").from != "":
		return sources, nil
	default:
		if name, named.from = home.selected(), "selected"; name == "" {
			return sources, nil
		}
	}
	ctx, err := home.read(name)
	if err != nil {
		return sources, []error{fmt.Errorf("nats.context (%s): %w", named.from, err)}
	}
	src := ctx.source("context " + name)
	if namesUser(sources) {
		for _, k := range credentialKeys {
			delete(src, k)
		}
		if url, ok := src["nats.url"]; ok {
			src["nats.url"] = value{withoutUsers(url.items), url.from}
		}
	}
	return append(sources, src), nil
}

// namesUser reports whether the sources say who connects.
func namesUser(sources []source) bool {
	for _, k := range credentialKeys {
		if pick(sources, k).from != "" {
			return true
		}
	}
	return strings.Contains(strings.Join(pick(sources, "nats.url").items, ","), "@")
}

// withoutUsers returns URLs without the users that they name, which nats.go would
// prefer to those of the options. What is no URL is left to be refused.
func withoutUsers(urls []string) (out []string) {
	for _, s := range urls {
		scheme, rest, ok := strings.Cut(s, "://")
		if !ok {
			scheme, rest = "nats", s
		}
		out = append(out, scheme+"://"+rest[strings.LastIndexByte(rest, '@')+1:])
	}
	return out
}

// contextHome finds the contexts of whoever has this environment.
type contextHome struct{ environ []string }

func (h contextHome) variable(name string) string {
	for _, kv := range h.environ {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return ""
}

// dir is where they are; empty: there is no home.
func (h contextHome) dir() string {
	if dir := h.variable("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "nats")
	}
	if home := h.variable("HOME"); home != "" {
		return filepath.Join(home, ".config", "nats")
	}
	return ""
}

// selected returns the name of the selected context; empty: none is.
func (h contextHome) selected() string {
	if h.dir() == "" {
		return ""
	}
	name, err := os.ReadFile(filepath.Join(h.dir(), "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// read reads a context, named or given as a file.
func (h contextHome) read(name string) (*natsContext, error) {
	file := name
	if !filepath.IsAbs(name) {
		if strings.ContainsAny(name, `/\`) || strings.Contains(name, "..") {
			return nil, fmt.Errorf("%q is not the name of a context, nor an absolute path of one", name)
		}
		if h.dir() == "" {
			return nil, fmt.Errorf("context %q: neither HOME nor XDG_CONFIG_HOME is set; an absolute path is a context, too", name)
		}
		file = filepath.Join(h.dir(), "context", name+".json")
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no context %q, there is no %s: 'nats context ls' shows those that exist; --nats-url does without", name, file)
	}
	if err != nil {
		return nil, err
	}
	var c natsContext
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w; use another context, or give the keys nats.*", file, err)
	}
	for _, path := range []*string{&c.Creds, &c.NKey, &c.Cert, &c.Key, &c.CA} {
		*path = h.expand(*path)
	}
	return &c, nil
}

// check refuses what only the nats command line can follow.
func (c *natsContext) check() error {
	for _, f := range []struct{ name, value string }{
		{"nsc", c.NSC}, {"socks_proxy", c.SocksProxy}, {"user_jwt", c.UserJWT}, {"user_seed", c.UserSeed}, {"windows_cert_store", c.WinStore},
	} {
		if f.value != "" {
			return fmt.Errorf("%s is not supported", f.name)
		}
	}
	for _, f := range []struct{ name, value string }{
		{"user", c.User}, {"password", c.Password}, {"token", c.Token}, {"creds", c.Creds}, {"nkey", c.NKey}, {"cert", c.Cert}, {"key", c.Key}, {"ca", c.CA},
	} {
		if scheme, _, ok := strings.Cut(f.value, "://"); ok && !strings.ContainsAny(scheme, "/ ") {
			return fmt.Errorf("%s refers to %s://, which is not supported", f.name, scheme)
		}
	}
	return nil
}

// expand replaces ~ and variables in the name of a file.
func (h contextHome) expand(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		path = h.variable("HOME") + rest
	}
	return os.Expand(path, h.variable)
}

// source is the context as the values of keys.
func (c *natsContext) source(from string) source {
	src := source{}
	for name, text := range map[string]string{
		"nats.url": c.URL, "nats.user": c.User, "nats.password": c.Password, "nats.token": c.Token, "nats.creds": c.Creds,
		"nats.nkey": c.NKey, "nats.cert": c.Cert, "nats.key": c.Key, "nats.ca": c.CA, "nats.inbox_prefix": c.InboxPrefix,
	} {
		if text != "" {
			src[name] = value{split(keyNamed(name), text), from}
		}
	}
	if c.TLSFirst {
		src["nats.tls_first"] = value{[]string{"true"}, from}
	}
	return src
}
