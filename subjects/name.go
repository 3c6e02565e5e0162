package subjects

import (
	"fmt"
	"strings"
)

const (
	maxPrefix = 64
	maxName   = 64 // of a bridge or worker
)

// CheckPrefix returns nil when prefix can be the prefix of all subjects of a
// bridge, else ErrName: it has one or more tokens of letters, digits, _ and -,
// at most 64 bytes in all, and is not reserved for NATS.
func CheckPrefix(prefix string) error {
	flaw := ""
	switch {
	case len(prefix) > maxPrefix:
		flaw = "longer than 64 bytes"
	case isReserved(prefix):
		flaw = flawReserved
	default:
		for token := range strings.SplitSeq(prefix, ".") {
			if !isName(token) {
				flaw = "want one or more tokens of letters, digits, _ and -, joined by dots"
			}
		}
	}
	if flaw != "" {
		return fmt.Errorf("%w: prefix %s: %s", ErrName, quote(prefix), flaw)
	}
	return nil
}

// CheckBridgeID returns nil when id can name a bridge, else ErrName: 1 to 64
// letters, digits, _ and -.
func CheckBridgeID(id string) error { return checkID("bridge", id) }

// CheckWorkerID returns nil when id can name a worker, else ErrName: it is spelt
// as a bridge id is.
func CheckWorkerID(id string) error { return checkID("worker", id) }

func checkID(of, id string) error {
	if !isName(id) || len(id) > maxName {
		return fmt.Errorf("%w: %s id %s: want 1 to 64 letters, digits, _ and -", ErrName, of, quote(id))
	}
	return nil
}

// BridgeID makes a bridge id of a host name: dots and other characters that an
// id cannot have become _, and it is cut to 64 bytes. An empty host gives an
// empty id, which is not valid.
func BridgeID(host string) string {
	id := strings.Map(func(r rune) rune {
		if r < 0x80 && isNameByte(byte(r)) {
			return r
		}
		return '_'
	}, host)
	return id[:min(len(id), maxName)]
}

func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c == '_' || c == '-'
}
