package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/delaybridge/delaybridge/subjects"
)

// The setters of the key table: each reads the values of one key into the
// configuration, or says what is wrong with them. Those of secret keys never
// repeat the value.

// setter is what the key table calls.
type setter = func(*config, []string) error

// one makes a setter of a function that takes exactly one value.
func one(set func(c *config, v string) error) setter {
	return func(c *config, v []string) error {
		if len(v) != 1 {
			return fmt.Errorf("%d values instead of one", len(v))
		}
		return set(c, v[0])
	}
}

func text(field func(*config) *string) setter {
	return one(func(c *config, v string) error { *field(c) = v; return nil })
}

func required(field func(*config) *string) setter {
	return one(func(c *config, v string) error {
		if v == "" {
			return errors.New("must not be empty")
		}
		*field(c) = v
		return nil
	})
}

// file takes the name of a file that can be read. A directory is what a container gets
// for a volume that names a file which is not there.
func file(field func(*config) *string) setter {
	return one(func(c *config, v string) error {
		f, err := os.Open(v)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil {
			return err
		} else if info.IsDir() {
			return fmt.Errorf("%s is a directory, not a file", v)
		}
		*field(c) = v
		return nil
	})
}

func oneOf(field func(*config) *string, words ...string) setter {
	return one(func(c *config, v string) error {
		for _, w := range words {
			if v == w {
				*field(c) = v
				return nil
			}
		}
		return fmt.Errorf("%q is none of %s", v, strings.Join(words, ", "))
	})
}

// positive takes a whole number above zero.
func positive(field func(*config) *int) setter {
	return one(func(c *config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", v)
		}
		if n < 1 {
			return fmt.Errorf("%d is less than 1", n)
		}
		*field(c) = n
		return nil
	})
}

// duration takes a duration above zero, in the units of the subjects.
func duration(field func(*config) *time.Duration) setter {
	return one(func(c *config, v string) error {
		d, err := subjects.ParseHeaderDelay(v)
		if err != nil {
			return fmt.Errorf("%q is not a duration like 250ms, 30s, 1h30m, 7d or 2w", v)
		}
		if d == 0 {
			return errors.New("must be more than 0")
		}
		*field(c) = d
		return nil
	})
}

// maxAttempts: no limit is 0 to people and negative to the adapter, where 0
// stands for the default.
var maxAttempts = one(func(c *config, v string) error {
	n, err := strconv.ParseUint(v, 10, 31)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a whole number of 0 or more", v)
	case n == 0:
		c.bridge.MaxAttempts = -1
	default:
		c.bridge.MaxAttempts = int(n)
	}
	return nil
})

// durability says what holds for jobs that do not ask.
var durability = one(func(c *config, v string) error {
	if v != "" && !strings.EqualFold(v, "local") {
		return fmt.Errorf("%q is not local", v)
	}
	c.bridge.JournalAll = v != ""
	return nil
})

func lanes(c *config, v []string) error {
	c.bridge.Lanes = nil
	for _, s := range v {
		i := strings.LastIndexByte(s, '=')
		if i < 0 {
			return fmt.Errorf("%q is not pattern=deliveries", s)
		}
		n, err := strconv.Atoi(s[i+1:])
		if err != nil {
			return fmt.Errorf("%q: %q is not a whole number", s, s[i+1:])
		}
		c.bridge.Lanes = append(c.bridge.Lanes, adapter.Lane{Pattern: s[:i], MaxInFlight: n})
	}
	return nil
}

var logLevel = one(func(c *config, v string) error {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(v, l.String()) {
			c.logLevel = l
			return nil
		}
	}
	return fmt.Errorf("%q is none of debug, info, warn, error", v)
})

var httpAddr = one(func(c *config, v string) error {
	if v == "" || v == "off" {
		c.http.addr = ""
		return nil
	}
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port with a numeric port", v)
	}
	c.http.addr = v
	return nil
})

// natsURLs takes one or more server addresses; the scheme may be left out.
func natsURLs(c *config, v []string) error {
	var urls []string
	for _, s := range v {
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		// The error of url.Parse repeats the URL, password included.
		if err != nil || u.Host == "" {
			return errors.New("not a URL like nats://host:4222; write special characters of a password as %XX")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return fmt.Errorf("scheme %q is none of nats, tls, ws, wss", u.Scheme)
		}
		urls = append(urls, s)
	}
	if len(urls) == 0 {
		return errors.New("must not be empty")
	}
	c.nats.urls = urls
	return nil
}

var redisURL = one(func(c *config, v string) error {
	u, err := url.Parse(v)
	if err != nil || v != "" && u.Host == "" {
		return errors.New("not a URL like redis://[user:password@]host:6379/0; write special characters of a password as %XX")
	}
	if v != "" {
		if _, err := redisdelay.ClientOptions(v, time.Second); err != nil {
			return err
		}
	}
	c.redisURL = v
	return nil
})

// withoutSecrets returns a URL, or several, with everything before the host
// left out but the scheme: a user alone may be a token.
func withoutSecrets(urls ...string) string {
	var out []string
	for _, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			out = append(out, "(unreadable)")
			continue
		}
		out = append(out, (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
	}
	return strings.Join(out, ",")
}
