package testproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu      sync.Mutex // also held while writing to the client
	pending []reply    // of commands without a reply yet
	broken  bool       // something was lost: what is said no longer matches what is answered
}

// reply is what a command gets.
type reply struct {
	drop    bool
	refusal string // instead of the server's; empty: the server's
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
		to := l.proxy.command(args)
		if lost, err := l.expect(to); err != nil {
			return err
		} else if lost || to.refusal != "" {
			continue
		}
		if _, err := l.server.Write(raw); err != nil {
			return err
		}
	}
}

// expect notes what a command gets, and whether it is lost.
func (l *link) expect(to reply) (lost bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken = l.broken || l.proxy.disturbance().LoseCommands; l.broken {
		return true, nil
	}
	if l.pending = append(l.pending, to); len(l.pending) == 1 {
		err = l.refuse()
	}
	return false, err
}

// refuse answers the oldest pending commands that do not get the server's
// reply. l.mu is held.
func (l *link) refuse() error {
	for len(l.pending) > 0 && l.pending[0].refusal != "" {
		if _, err := io.WriteString(l.client, "-"+l.pending[0].refusal+"\r\n"); err != nil {
			return err
		}
		l.pending = l.pending[1:]
	}
	return nil
}

var errCut = errors.New("testproxy: cut")

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
		if err := l.reply(raw); err != nil {
			return err
		}
	}
}

func (l *link) reply(raw []byte) error {
	d := l.proxy.disturbance()
	time.Sleep(d.Delay)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken = l.broken || d.LoseReplies; l.broken {
		return nil
	}
	if raw[0] != '>' && l.next() {
		return errCut
	}
	if d.Tear != nil && d.Tear() {
		l.tear(raw)
		return errCut
	}
	if _, err := l.client.Write(raw); err != nil {
		return err
	}
	return l.refuse()
}

// tear writes half of a reply and resets the connection. l.mu is held.
func (l *link) tear(raw []byte) {
	_, _ = l.client.Write(raw[:len(raw)/2])
	if c, ok := l.client.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // so that closing resets it
	}
}

// next takes the oldest pending command and reports whether its reply is to be
// dropped. l.mu is held.
func (l *link) next() bool {
	if len(l.pending) == 0 {
		return false
	}
	drop := l.pending[0].drop
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
