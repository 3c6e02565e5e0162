package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/delaybridge/delaybridge/subjects"
)

const (
	slowNATS = 50 * time.Millisecond
	// smallPayload is where jobs of an ordinary size are refused; 2 KiB of it are
	// for what a delivery adds.
	smallPayload = 64 << 10
)

func (d *doctor) lookAtNATS(ctx context.Context) {
	heard := newRefusals()
	nc, err := d.cfg.nats.dial(program+"/doctor", nats.NoReconnect(), nats.ErrorHandler(heard.hear))
	if err != nil {
		d.bad("nats.connection", err.Error(), "without NATS a bridge takes and delivers nothing", "start it there, or correct nats.url and the other keys of nats")
		return
	}
	defer nc.Close()
	d.natsConnection(nc)
	d.natsSecrecy(nc)
	d.natsPayload(nc)
	d.natsPermissions(nc, heard)
	d.natsStreams(ctx, nc)
	d.lookAtBridge(ctx, nc)
}

func (d *doctor) natsConnection(nc *nats.Conn) {
	var trips []time.Duration
	for range 9 {
		t, err := nc.RTT()
		if err != nil {
			d.bad("nats.connection", "lost: "+err.Error(), "a bridge needs NATS", "look at the server's log")
			return
		}
		trips = append(trips, t)
	}
	median, worst := medianAndWorst(trips)
	seen := fmt.Sprintf("%s, version %s, round trip %s (worst of %d: %s)", nc.ConnectedUrlRedacted(), nc.ConnectedServerVersion(), short(median), len(trips), short(worst))
	if median > slowNATS {
		d.warn("nats.connection", seen, "each job takes several round trips, and its worker waits for them", "run the bridge near the NATS servers")
		return
	}
	d.ok("nats.connection", seen)
}

// natsSecrecy tells when a password can be read on the way.
func (d *doctor) natsSecrecy(nc *nats.Conn) {
	_, err := nc.TLSConnectionState()
	secret := d.cfg.nats.user+d.cfg.nats.token+d.cfg.nats.passwordFile != "" || strings.Contains(nc.ConnectedUrl(), "@")
	switch {
	case err == nil:
		d.ok("nats.tls", "on")
	case secret && !isLoopback(nc.ConnectedAddr()):
		d.warn("nats.tls", "off, and a password or token is sent", "whoever sees the network can read it",
			"switch TLS on in the server and give nats.ca, or use nats.creds or nats.nkey, which send no secret")
	default:
		d.info("nats.tls", "off", "")
	}
}

func (d *doctor) natsPayload(nc *nats.Conn) {
	n := nc.MaxPayload()
	seen := fmt.Sprintf("%d bytes", n)
	if n < smallPayload {
		d.warn("nats.max_payload", seen, fmt.Sprintf("jobs of more than %d bytes, headers included, are refused: a delivery adds up to 2048", max(0, n-2048)),
			"raise max_payload in the server's configuration")
		return
	}
	d.ok("nats.max_payload", seen)
}

// captured are the subjects that a stream must not answer in place of a bridge or a
// worker.
func captured(prefix string) []string {
	all := subjects.IntakeSubjects(prefix)
	for _, kind := range []string{"ack", "api", subjects.KindHeartbeat, subjects.KindBye, subjects.KindJob, subjects.KindPing, "sys"} {
		all = append(all, prefix+"."+kind+".>")
	}
	return all
}

// natsStreams looks for streams that capture subjects of the bridge: they answer
// producers, who take that for the bridge's answer.
func (d *doctor) natsStreams(ctx context.Context, nc *nats.Conn) {
	found := false
	for _, subject := range captured(d.cfg.bridge.Prefix) {
		names, err := streamsOf(ctx, nc, subject)
		switch {
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, errNoJetStream):
			d.ok("nats.streams", "no JetStream in this account")
			return
		case err != nil:
			d.info("nats.streams", "not known: JetStream does not answer this user ("+err.Error()+")", fmt.Sprintf("ask a user who may: nats stream ls --subject '%s' (and for at, to, ack, api)", subject))
			return
		case len(names) > 0:
			found = true
			d.bad("nats.streams", fmt.Sprintf("%s captures %s", strings.Join(names, ", "), subject),
				"the stream answers what is sent there, so that a client takes for done what no bridge has seen",
				"take the subject out of the stream, or set no_ack on the stream if it is to keep a copy")
		}
	}
	if !found {
		d.ok("nats.streams", "none captures subjects of the bridge")
	}
}

// lookAtBridge asks who runs already.
func (d *doctor) lookAtBridge(ctx context.Context, nc *nats.Conn) {
	id, prefix := d.cfg.bridge.ID, d.cfg.bridge.Prefix
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := nc.RequestWithContext(ctx, subjects.Presence(prefix, id), nil); err == nil {
		d.info("bridge.presence", fmt.Sprintf("%s runs, with the prefix %s", id, prefix), "")
	} else {
		d.info("bridge.presence", fmt.Sprintf("no bridge with the id %s and the prefix %s answers", id, prefix), "")
	}
	d.lookAtStats(nc)
}

// medianAndWorst of at least one.
func medianAndWorst(of []time.Duration) (median, worst time.Duration) {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2], of[len(of)-1]
}

// short is d with three digits at most.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return d.String()
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
