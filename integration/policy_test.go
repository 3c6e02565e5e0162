package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats.go"
)

// securityDoc is where the permission sets are that these tests try: what it says
// and what works cannot differ.
const securityDoc = "../docs/security.md"

// documented returns the code block of that name in securityDoc.
func documented(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(securityDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```"+name+"\n")
	block, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatalf("%s has no code block %q", securityDoc, name)
	}
	return block + "\n"
}

// The roles, as securityDoc calls them.
const (
	bridgeRole    = "BRIDGE"
	producerRole  = "PRODUCER"
	plainRole     = "PLAIN_WORKER"
	answeringRole = "ANSWERING_WORKER"
	owningRole    = "OWNING_WORKER"
	readerRole    = "READER"
	adminRole     = "ADMIN"
)

// permissions are what a user may do, in the server's terms.
type permissions struct {
	Publish   []string `json:"publish,omitempty"`
	Subscribe []string `json:"subscribe,omitempty"`
	Responses any      `json:"allow_responses,omitempty"`
}

// all allows everything.
var all = permissions{Publish: []string{">"}, Subscribe: []string{">"}}

// documentedSets reads the permission sets of all roles.
func documentedSets(t *testing.T) map[string]permissions {
	t.Helper()
	parsed, err := conf.Parse(documented(t, "conf permissions"))
	if err != nil {
		t.Fatalf("%s: %v", securityDoc, err)
	}
	data, err := json.Marshal(parsed)
	sets := map[string]permissions{}
	if err == nil {
		err = json.Unmarshal(data, &sets)
	}
	if err != nil {
		t.Fatalf("%s: %v", securityDoc, err)
	}
	return sets
}

// lacking is a set with one permission less.
type lacking struct {
	role      string
	kind      string // publish, subscribe or answer
	permitted string // what is not there
	permissions
}

func (l lacking) String() string { return l.role + " " + l.kind + " " + l.permitted }

// nothing takes the place of what is removed: an empty list would allow all.
const nothing = "nothing"

// oneLess returns all sets of a role that lack one permission.
func oneLess(role string, full permissions) (out []lacking) {
	for i, p := range full.Publish {
		less := full
		less.Publish = slices.Clone(full.Publish)
		less.Publish[i] = nothing
		out = append(out, lacking{role, "publish", p, less})
	}
	for i, p := range full.Subscribe {
		less := full
		less.Subscribe = slices.Clone(full.Subscribe)
		less.Subscribe[i] = nothing
		out = append(out, lacking{role, "subscribe", p, less})
	}
	if full.Responses != nil {
		less := full
		less.Responses = nil
		less.Publish = append([]string{nothing}, full.Publish...)
		out = append(out, lacking{role, "answer", "delay.ack.*.*", less})
	}
	return out
}

// quotedSubject is how messages name subjects: in quotes, those of log lines that are
// quoted themselves escaped, or as the value of a field.
var quotedSubject = regexp.MustCompile(`\\?"([^"\\ ]+)\\?"|(?:subject|allow)=([^ "]+)`)

// names reports whether a message names a subject that is missing.
func (l lacking) names(message string) bool {
	pattern, _, _ := strings.Cut(l.permitted, " ") // its queue group
	m, err := subjects.NewMatcher([]string{pattern})
	if err != nil {
		panic(err) // the server has taken it
	}
	if !strings.Contains(strings.ToLower(message), "permission") {
		return false
	}
	for _, q := range quotedSubject.FindAllStringSubmatch(message, -1) {
		if s := q[1] + q[2]; s == pattern || m.Match(s) {
			return true
		}
	}
	return false
}

// account is an account of a server, with a user per name.
type account map[string]permissions

// accounts writes the server's configuration. The name of a user is his password,
// too.
func accounts(all map[string]account) string {
	type user struct {
		User        string      `json:"user"`
		Password    string      `json:"password"`
		Permissions permissions `json:"permissions"`
	}
	var b strings.Builder
	b.WriteString("accounts {\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "  %s { users: [\n", name)
		for _, u := range slices.Sorted(maps.Keys(all[name])) {
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			_ = enc.Encode(user{u, u, all[name][u]}) // strings cannot fail
		}
		b.WriteString("  ] }\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// notes are the messages that the parts of a test give: lines of logs, and what the
// server tells its clients.
type notes struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed when there is another one
}

func newNotes() *notes { return &notes{more: make(chan struct{})} }

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
	close(n.more)
	n.more = make(chan struct{})
}

// Write takes a line of a log.
func (n *notes) Write(p []byte) (int, error) {
	n.add("%s", p)
	return len(p), nil
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

// await returns the first line that is what is looked for.
func (n *notes) await(t *testing.T, what string, is func(line string) bool) string {
	t.Helper()
	end := time.After(patient)
	for seen := 0; ; {
		n.mu.Lock()
		lines, more := n.lines[seen:], n.more
		seen = len(n.lines)
		n.mu.Unlock()
		for _, l := range lines {
			if is(l) {
				return l
			}
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("no message %s within %v, but\n%s", what, patient, strings.Join(n.all(), "\n"))
		}
	}
}

// user connects as a user; what the server tells him goes to notes.
func (s *system) user(n *notes, name, password, inbox string) *nats.Conn {
	s.t.Helper()
	return s.connect(nats.UserInfo(name, password), nats.CustomInboxPrefix("_INBOX."+inbox), nats.Name(name),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.add("%s: %v", name, err) }))
}

// The two forms of the permission sets, configuration and JWT, are the same.
func TestSetsAsJWT(t *testing.T) {
	roles := map[string]string{}
	for _, m := range regexp.MustCompile(`user: (\w+), .*permissions: \$(\w+)`).FindAllStringSubmatch(documented(t, "conf users"), -1) {
		roles[m[1]] = m[2]
	}
	sets := documentedSets(t)
	option := regexp.MustCompile(`--(name|allow-pub|allow-sub|allow-pub-response|response-ttl)[ =]('[^']*'|\S+)`)
	for _, line := range strings.Split(strings.ReplaceAll(strings.TrimSpace(documented(t, "sh nsc")), "\\\n", " "), "\n") {
		o := map[string]string{}
		for _, m := range option.FindAllStringSubmatch(line, -1) {
			o[m[1]] = strings.Trim(m[2], "'")
		}
		role := roles[o["name"]]
		set, known := sets[role]
		if !known {
			t.Errorf("nsc names a user %q who has no documented set", o["name"])
			continue
		}
		delete(roles, o["name"])
		if got, want := o["allow-pub"], strings.Join(set.Publish, ","); got != want {
			t.Errorf("%s: nsc has publish %q, the configuration %q", role, got, want)
		}
		if got, want := o["allow-sub"], strings.Join(set.Subscribe, ","); got != want {
			t.Errorf("%s: nsc has subscribe %q, the configuration %q", role, got, want)
		}
		var limits any
		if o["allow-pub-response"] != "" {
			limits = fmt.Sprintf("map[expires:%s max:%s]", o["response-ttl"], o["allow-pub-response"])
		}
		if limits != nil && limits != fmt.Sprint(set.Responses) || limits == nil && set.Responses != nil {
			t.Errorf("%s: nsc has responses %v, the configuration %v", role, limits, set.Responses)
		}
	}
	for user := range roles {
		t.Errorf("nsc does not have the user %q", user)
	}
}
