package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/delaybridge/delaybridge/api"
)

// requestInfo is the header in which the server says who calls through a service
// import whose owner shares it. A client of the bridge's own account can write there
// what it likes.
const requestInfo = "Nats-Request-Info"

// maxInfo bounds what is read of it.
const maxInfo = 8 << 10

// who is what the server says of who calls.
type who struct {
	Account string `json:"acc"`
	Service string `json:"svc"` // the account whose import it came through last
	User    string `json:"user"`
	Name    string `json:"name"` // of the connection
	Host    string `json:"host"`
}

func readWho(header string) (w who) {
	if header == "" || len(header) > maxInfo || json.Unmarshal([]byte(header), &w) != nil {
		return who{}
	}
	return w
}

// args are for the log.
func (w *who) args() (args []any) {
	for _, f := range [...]struct{ key, value string }{
		{"account", w.Account}, {"through", w.Service}, {"user", w.User}, {"connection", w.Name}, {"host", w.Host},
	} {
		if f.value != "" {
			args = append(args, f.key, cut(f.value))
		}
	}
	return args
}

const maxLogged = 128

func cut(s string) string { return s[:min(len(s), maxLogged)] }

// audit logs calls that were to change something. Of those about single jobs it
// writes perSecond lines at most, and counts the others.
type audit struct {
	log *slog.Logger

	mu      sync.Mutex
	begun   time.Time // of the second that lines are counted in
	lines   int
	skipped int
}

const perSecond = 10

// next reports whether a line may be written, and how many may not since the last.
func (a *audit) next() (skipped int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.begun) >= time.Second {
		a.begun, a.lines = now, 0
	}
	if a.lines >= perSecond {
		a.skipped++
		return 0, false
	}
	a.lines++
	skipped, a.skipped = a.skipped, 0
	return skipped, true
}

// note logs a call.
func (a *audit) note(c *call, got answer) {
	args := []any{"verb", c.verb.name}
	switch body := got.body.(type) {
	case api.Change:
		args = append(args, "id", string(body.ID), "result", string(body.Result))
	case api.Purged:
		args = append(args, "purged", body.Purged)
	}
	args = append(args, c.asked()...)
	if got.failure != nil && got.body == nil {
		args = append(args, "error", got.failure)
	}
	args = append(args, c.who.args()...)
	if _, change := got.body.(api.Change); !change && got.failure == nil {
		a.log.Info("admin call", args...) // purge, pause, resume: each is written
		return
	}
	a.write(slog.LevelInfo, "admin call", args)
}

func (a *audit) write(level slog.Level, msg string, args []any) {
	skipped, ok := a.next()
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "more_since_last", skipped)
	}
	a.log.Log(context.Background(), level, msg, args...)
}

// asked is which target or pattern a call was about, as far as it can be read.
func (c *call) asked() []any {
	target := c.target
	if target == "" {
		var req api.TargetRequest
		if json.Unmarshal(c.body, &req) == nil {
			target = req.Target
		}
	}
	if target == "" {
		return nil
	}
	return []any{"target", cut(target)}
}

func (a *audit) badReply(verb, reply string) {
	a.write(slog.LevelWarn, "admin call not answered: nothing is sent to its reply subject", []any{"verb", verb, "reply", cut(reply)})
}

func (a *audit) unsent(err error) {
	a.write(slog.LevelWarn, "answer to an admin call not sent", []any{"error", err})
}
