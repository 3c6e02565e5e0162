package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/subjects"
)

// A permission is a subject that a bridge uses, and what allows it.
type permission struct {
	subject string // tried
	allow   string // the line to add
	use     string // for what
	spare   bool   // a bridge does without
}

// subscriptions are what a bridge listens to.
func (d *doctor) subscriptions() (all []permission) {
	p, id := d.cfg.bridge.Prefix, d.cfg.bridge.ID
	for _, s := range subjects.IntakeSubjects(p) {
		all = append(all, permission{subject: s, use: "jobs"})
	}
	own := subjects.AckWildcard(p, id)
	all = append(all, permission{subject: own, use: "acknowledgements"})
	for _, kind := range []string{subjects.KindHeartbeat, subjects.KindBye} {
		all = append(all, permission{subject: subjects.WorkerWildcard(p, kind), use: "workers that own their jobs"})
	}
	for _, s := range append(exchanged(p, id), subjects.PeerAPI(p, id)) {
		all = append(all, permission{subject: s, allow: p + ".sys.>", use: "other bridges"})
	}
	return append(all,
		permission{subject: d.cfg.nats.inbox() + ".doctor.*", allow: d.cfg.nats.inbox() + ".>", use: "answers to the bridge"},
		permission{subject: subjects.AckWildcard(p, "*"), use: "taking over for a bridge that stops", spare: true},
		permission{subject: subjects.WorkerWildcard(p, subjects.KindOwner), use: "knowing what workers own of other bridges", spare: true},
		permission{subject: subjects.API(p, api.Get, ""), allow: p + ".api.>", use: "the admin API", spare: true},
		permission{subject: subjects.API(p, api.Get, ">"), allow: p + ".api.>", use: "the admin API", spare: true},
		permission{subject: "$SRV.>", use: "nats micro ls", spare: true},
	)
}

// exchanged are the subjects on which the bridge talks with all others.
func exchanged(p, id string) []string {
	return []string{subjects.Presence(p, id), subjects.Takeover(p), subjects.Started(p), subjects.State(p), subjects.Canary(p), subjects.Paused(p)}
}

// publications are what a bridge publishes to, targets aside.
func (d *doctor) publications() (all []permission) {
	p, id := d.cfg.bridge.Prefix, d.cfg.bridge.ID
	for _, kind := range []string{subjects.KindJob, subjects.KindPing, subjects.KindOwner} {
		all = append(all, permission{subject: subjects.Worker(p, kind, "doctor"), allow: p + "." + kind + ".>", use: "workers that own their jobs"})
	}
	for _, s := range append(exchanged(p, id), subjects.PeerAPI(p, "doctor")) {
		all = append(all, permission{subject: s, allow: p + ".sys.>", use: "other bridges"})
	}
	return append(all,
		permission{subject: subjects.Event(p, "dead"), allow: p + ".event.>", use: "events"},
		permission{subject: nats.NewInbox(), allow: nats.InboxPrefix + ">", use: "answers to producers (allow_responses does for these, too)"},
	)
}

// reservedReply begins the replies that a server lets nobody use. What is published
// with one is dropped right after the permission was checked: so it can be tried
// whether a subject may be published to without anybody getting something.
const reservedReply = "_R_.doctor."

const (
	lastProbe     = "delaybridge-doctor-end"
	settleTimeout = 5 * time.Second
)

// natsPermissions tries each subject, and tells which are refused.
func (d *doctor) natsPermissions(nc *nats.Conn, heard *refusals) {
	listen, speak := d.subscriptions(), d.publications()
	for _, p := range listen {
		s, err := nc.SubscribeSync(p.subject)
		if err == nil {
			err = s.Unsubscribe() // in the same write: nothing is missed by those who listen
		}
		if err != nil {
			d.bad("nats.permissions", err.Error(), "", "")
			return
		}
	}
	for _, p := range append(speak, d.targets()...) {
		m := &nats.Msg{Subject: p.subject, Reply: reservedReply + "x"}
		if err := nc.PublishMsg(m); err != nil {
			d.bad("nats.permissions", err.Error(), "", "")
			return
		}
	}
	if err := heard.settle(nc); err != nil {
		d.info("nats.permissions", "not known: "+err.Error(), "")
		return
	}
	missing := d.tellMissing("subscribe", listen, heard.subscribe)
	missing = d.tellMissing("publish", speak, heard.publish) || missing
	if !missing {
		d.ok("nats.permissions", fmt.Sprintf("may subscribe to and publish to the %d subjects of a bridge", len(listen)+len(speak)))
	}
	d.tellTargets(heard.publish)
}

func (d *doctor) tellMissing(verb string, all []permission, refused map[string]bool) (missing bool) {
	told := map[string]bool{}
	for _, p := range all {
		if p.allow == "" {
			p.allow = p.subject
		}
		if !refused[p.subject] || told[p.allow] {
			continue
		}
		missing, told[p.allow] = true, true
		seen := fmt.Sprintf("this user may not %s to %s", verb, p.subject)
		do := fmt.Sprintf("allow it in the server's configuration: %s: {allow: [%q]}", verb, p.allow)
		if p.spare {
			d.warn("nats.permissions", seen, "it is for: "+p.use, do)
		} else {
			d.bad("nats.permissions", seen, "a bridge needs it for: "+p.use, do)
		}
	}
	return missing
}

// targets are subjects that stand for those of the jobs.
func (d *doctor) targets() (all []permission) {
	allowed := d.cfg.bridge.AllowTargets
	if len(allowed) == 0 {
		allowed = []string{">"}
	}
	for _, pattern := range allowed {
		tokens := strings.Split(pattern, ".")
		for i, t := range tokens {
			if t == "*" || t == ">" {
				tokens[i] = "doctor"
			}
		}
		all = append(all, permission{subject: strings.Join(tokens, "."), allow: pattern})
	}
	return all
}

func (d *doctor) tellTargets(refused map[string]bool) {
	everywhere := len(d.cfg.bridge.AllowTargets) == 0
	for _, p := range d.targets() {
		switch {
		case !refused[p.subject]:
		case everywhere:
			d.info("nats.targets", "this user may not publish everywhere", "set targets.allow to what it may publish to, so that other jobs are refused at once; now they wait")
		default:
			d.bad("nats.targets", "this user may not publish to "+p.subject, "targets.allow takes jobs for "+p.allow+", and they would wait for ever",
				fmt.Sprintf("allow it in the server's configuration: publish: {allow: [%q]}; or take it out of targets.allow", p.allow))
		}
	}
}

// refusals collects what the server refuses.
type refusals struct {
	mu                 sync.Mutex
	publish, subscribe map[string]bool
	end                chan struct{} // of one probe
}

func newRefusals() *refusals {
	return &refusals{publish: map[string]bool{}, subscribe: map[string]bool{}, end: make(chan struct{}, 1)}
}

func (r *refusals) hear(_ *nats.Conn, _ *nats.Subscription, err error) {
	if strings.Contains(err.Error(), lastProbe) {
		select {
		case r.end <- struct{}{}:
		default:
		}
		return
	}
	subject, publish, ok := adapter.Refused(err)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if publish {
		r.publish[subject] = true
	} else {
		r.subscribe[subject] = true
	}
}

// settle waits until the answers to all that was sent are in. The server complains
// about the last message, whether it refuses its subject or its reply.
func (r *refusals) settle(nc *nats.Conn) error {
	if err := nc.PublishMsg(&nats.Msg{Subject: lastProbe, Reply: reservedReply + lastProbe}); err != nil {
		return err
	}
	if err := nc.FlushTimeout(settleTimeout); err != nil {
		return err
	}
	select {
	case <-r.end:
		return nil
	case <-time.After(settleTimeout):
		return errors.New("the server does not say what it refuses")
	}
}

var errNoJetStream = errors.New("no JetStream")

// streamsOf returns the streams that capture some of a subject and answer.
func streamsOf(ctx context.Context, nc *nats.Conn, subject string) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for offset := 0; ; {
		ask, err := json.Marshal(map[string]any{"subject": subject, "offset": offset})
		if err != nil {
			return nil, err
		}
		reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LIST", ask)
		if err != nil {
			return nil, err
		}
		var page struct {
			Total, Offset int
			Streams       []struct {
				Config struct {
					Name  string
					NoAck bool `json:"no_ack"`
				}
			}
			Error *struct {
				Code        int
				Description string
			}
		}
		if err := json.Unmarshal(reply.Data, &page); err != nil {
			return nil, fmt.Errorf("answer of JetStream: %w", err)
		}
		switch {
		case page.Error != nil && page.Error.Code == 503:
			return nil, errNoJetStream
		case page.Error != nil:
			return nil, errors.New(page.Error.Description)
		}
		for _, s := range page.Streams {
			if !s.Config.NoAck {
				names = append(names, s.Config.Name)
			}
		}
		if offset += len(page.Streams); len(page.Streams) == 0 || offset >= page.Total {
			return names, nil
		}
	}
}
