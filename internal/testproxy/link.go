package testproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu      sync.Mutex
	pending []bool // commands without a reply yet: drop it?
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// run copies one direction until it fails, and then ends the other, too.
func (l *link) run(direction func() error) {
	defer l.proxy.wg.Done()
	_ = direction() // ends with the connection; the client sees that
	l.close()
	l.proxy.unlink(l)
}

// commands passes commands on, one by one.
func (l *link) commands() error {
	r := bufio.NewReader(l.client)
	for {
		raw, args, err := readValue(r)
		if err != nil {
			return err
		}
		l.proxy.pass()
		l.mu.Lock()
		l.pending = append(l.pending, l.proxy.command(args))
		l.mu.Unlock()
		if _, err := l.server.Write(raw); err != nil {
			return err
		}
	}
}

// replies passes replies on, one by one, and cuts the connection in place of
// one that is to be dropped.
func (l *link) replies() error {
	r := bufio.NewReader(l.server)
	for {
		raw, _, err := readValue(r)
		if err != nil {
			return err
		}
		l.proxy.pass()
		if raw[0] != '>' && l.next() {
			return nil
		}
		if _, err := l.client.Write(raw); err != nil {
			return err
		}
	}
}

// next takes the oldest pending command and reports whether its reply is to be
// dropped.
func (l *link) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return false
	}
	drop := l.pending[0]
	l.pending = l.pending[1:]
	return drop
}

// readValue reads one RESP2 or RESP3 value: its bytes, and, for an array, its
// strings.
func readValue(r *bufio.Reader) (raw []byte, strs []string, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	raw = line
	text := strings.TrimRight(string(line[1:]), "\r\n")
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return raw, []string{text}, nil
	case '$', '!', '=':
		return readBulk(r, raw, text)
	case '*', '~', '>', '%', '|':
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, nil, err
		}
		if line[0] == '%' || line[0] == '|' {
			n *= 2
		}
		for range max(n, 0) {
			more, s, err := readValue(r)
			if err != nil {
				return nil, nil, err
			}
			raw, strs = append(raw, more...), append(strs, s...)
		}
		return raw, strs, nil
	}
	return nil, nil, fmt.Errorf("testproxy: not a RESP value: %q", line)
}

func readBulk(r *bufio.Reader, raw []byte, length string) ([]byte, []string, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return raw, []string{""}, err
	}
	body := make([]byte, n+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, nil, err
	}
	return append(raw, body...), []string{string(body[:n])}, nil
}
