package testproxy

import (
	"strings"
	"time"
)

// Disturbance is what a Proxy does to all connections for a time. The zero
// value is nothing.
type Disturbance struct {
	// Refuse is the error, without its dash, that commands are answered; they do
	// not reach the server. Those that only open a connection do.
	Refuse string
	// Delay is how long each reply of a connection is held back, one after the
	// other.
	Delay time.Duration
	// LoseCommands and LoseReplies let what arrives disappear, while connections
	// stay open and new ones are taken.
	LoseCommands, LoseReplies bool
	// Tear, when it returns true for a reply, lets it end in the middle, with a
	// reset of its connection. It is called by several goroutines.
	Tear func() bool
}

// Disturb puts d in the place of what disturbed before. A connection on which
// something was lost stays silent until it is cut; that of the zero
// Disturbance, which heals, cuts all of those.
func (p *Proxy) Disturb(d Disturbance) {
	p.mu.Lock()
	p.present = d
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	if d.LoseCommands || d.LoseReplies {
		return
	}
	for _, l := range links {
		if l.isBroken() {
			l.close()
		}
	}
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (p *Proxy) disturbance() Disturbance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.present
}

// opens reports whether a command belongs to the opening of a connection.
func opens(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch strings.ToUpper(args[0]) {
	case "HELLO", "AUTH", "CLIENT", "SELECT":
		return true
	}
	return false
}
