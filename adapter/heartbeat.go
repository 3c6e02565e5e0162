package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/subjects"
	"github.com/nats-io/nats.go"
)

// workersGroup is the queue group in which bridges answer workers: all hear
// them, one answers.
const workersGroup = "delaybridge-workers"

// maxTokens is how many jobs one heartbeat may list.
const maxTokens = 4096

// beatBody is what a worker tells of itself.
type beatBody struct {
	Worker   string   `json:"worker"`
	Queue    string   `json:"queue"`
	Subjects []string `json:"subjects"`
	Capacity int      `json:"capacity"`
	Free     int      `json:"free"`
	Directed bool     `json:"directed"`
	Running  []string `json:"running"`
	Done     []string `json:"done"`
}

// beat is a heartbeat, or the farewell of a worker.
type beat struct {
	beatBody
	bye           bool
	covers        subjects.Matcher
	running, done []job.Ref
}

// beatMsg is one as it arrives: twice at the bridge that is to answer it.
type beatMsg struct {
	*nats.Msg
	kind  string // subjects.KindHeartbeat or subjects.KindBye
	asked bool   // it is to be answered, and its copy taken in
}

// parseBeat reads m. What is wrong with any part of it is wrong with all of it.
func parseBeat(prefix string, m beatMsg) (*beat, *job.Error) {
	name, ok := subjects.ParseWorker(prefix, m.kind, m.Subject)
	if !ok {
		return nil, job.ErrHeader.With("worker name in %q: want 1 to 64 letters, digits, _ and -", cut(m.Subject, 96))
	}
	b := &beat{bye: m.kind == subjects.KindBye}
	if err := json.Unmarshal(m.Data, &b.beatBody); err != nil {
		return nil, job.ErrHeader.With("heartbeat of worker %q: %v", name, err)
	}
	switch {
	case b.Worker != name:
		return nil, job.ErrHeader.With("heartbeat on %q names worker %q", m.Subject, cut(b.Worker, 64))
	case b.Capacity < 0 || b.Capacity > maxTokens || b.Free < 0 || b.Free > b.Capacity:
		return nil, job.ErrHeader.With("worker %q: capacity %d, free %d: want 0 <= free <= capacity <= %d", name, b.Capacity, b.Free, maxTokens)
	case len(b.Running)+len(b.Done) > maxTokens:
		return nil, job.ErrHeader.With("worker %q lists %d jobs, want at most %d", name, len(b.Running)+len(b.Done), maxTokens)
	}
	var err error
	if b.covers, err = subjects.NewMatcher(b.Subjects); err != nil {
		return nil, job.ErrHeader.With("worker %q: %v", name, err)
	}
	if b.running, err = parseTokens(b.Running); err == nil {
		b.done, err = parseTokens(b.Done)
	}
	if err != nil {
		return nil, job.ErrHeader.With("worker %q: %v", name, err)
	}
	return b, nil
}

func parseTokens(tokens []string) ([]job.Ref, error) {
	refs := make([]job.Ref, len(tokens))
	for i, text := range tokens {
		t, err := subjects.ParseToken(text)
		if err != nil {
			return nil, err
		}
		refs[i] = refOf(t)
	}
	return refs, nil
}

// refOf returns the delivery that t names.
func refOf(t subjects.Token) job.Ref {
	return job.Ref{ID: t.ID, Shard: t.Shard, Generated: t.Generated, Incarnation: t.Incarnation, Attempt: t.Attempt, Nonce: t.Nonce}
}

// listenWorkers subscribes to what workers say.
func (b *Bridge) listenWorkers() (subs []*nats.Subscription, err error) {
	on := func(s *nats.Subscription, e error) {
		if e != nil && err == nil {
			err = e
		} else if e == nil {
			subs = append(subs, s)
		}
	}
	for _, kind := range []string{subjects.KindHeartbeat, subjects.KindBye} {
		subject := subjects.WorkerWildcard(b.cfg.Prefix, kind)
		on(b.out.ChanSubscribe(subject, b.beats))
		on(b.out.ChanQueueSubscribe(subject, workersGroup, b.beats))
	}
	on(b.out.Subscribe(b.pongs+".*", b.heardPong))
	return subs, err
}

// beatQueue is how many heartbeats may wait; further ones are lost, and the next
// ones make up for them.
const beatQueue = 1 << 14

// beatLinger is how long heartbeats are gathered after some were taken in.
const beatLinger = 40 * time.Millisecond

// beatLoop keeps account of workers by what they say and whether they answer,
// until ctx is done.
func (b *Bridge) beatLoop(ctx context.Context) {
	tick, linger := time.NewTicker(watchPeriod), time.NewTimer(0)
	defer tick.Stop()
	defer linger.Stop()
	var msgs []beatMsg
	var first *nats.Msg
	last := b.disp.ticks()
	for {
		select {
		case <-ctx.Done():
			return
		case first = <-b.beats:
		case <-b.signs.wake:
		case <-tick.C:
		}
		msgs, first = b.arrived(msgs[:0], first), nil
		heard := b.takeBeats(msgs)
		b.takeSigns()
		if heard {
			sleepOrDone(ctx, linger, beatLinger)
		}
		if at := b.disp.ticks(); at.sub(last) >= watchPeriod {
			b.watchWorkers(at, at.sub(last))
			last = at
		}
	}
}

// arrived appends first, if any, and what came with it to msgs.
func (b *Bridge) arrived(msgs []beatMsg, first *nats.Msg) []beatMsg {
	for m := first; ; {
		if m != nil {
			kind := subjects.KindHeartbeat
			if strings.HasPrefix(m.Subject, b.byes) {
				kind = subjects.KindBye
			}
			msgs = append(msgs, beatMsg{m, kind, m.Sub.Queue != ""})
		}
		select {
		case m = <-b.beats:
		default:
			return msgs
		}
	}
}

// takeBeats takes in what workers have said, reports whether that was anything,
// and passes on what is to be answered. Copies of one message are read once.
func (b *Bridge) takeBeats(msgs []beatMsg) (heard bool) {
	read := make(map[string]*question, len(msgs)) // the last of each subject
	var asked []*question                         // answered when all has been taken in
	for _, m := range msgs {
		q := read[m.Subject]
		if q == nil || !bytes.Equal(q.data, m.Data) {
			p, err := parseBeat(b.cfg.Prefix, m)
			if err == nil {
				err = b.trust.worker(p.Worker, p.Subjects)
			}
			q = &question{beat: p, err: err, kind: m.kind, data: m.Data}
			read[m.Subject] = q
		}
		switch {
		case m.asked:
			asked = append(asked, &question{beat: q.beat, err: q.err, kind: m.kind, reply: b.replySubject(m.Reply)})
		case q.err == nil: // who asked is told by the one that answers
			b.takeIn(q.beat)
			heard = true
		}
	}
	b.questions.add(asked...)
	return heard
}

// takeIn does what a heartbeat or farewell entails.
func (b *Bridge) takeIn(p *beat) {
	r := b.disp.beat(p, b.now())
	b.settler.add(asideSettlements(r.aside)...)
	b.settler.add(r.renewed...)
	b.release(r.absent)
	if r.absent != nil {
		b.metrics.recovered(reasonAbsent, len(r.absent))
		b.orphaned(p.Worker, reasonAbsent, r.absent)
		b.log.worker.Log(b.cfg.Logger, "worker does not have jobs that it was given: they go to others", "worker", p.Worker, "jobs", len(r.absent))
	}
	if len(r.done) > 0 {
		b.settler.add(b.settlements(context.Background(), r.done)...)
	}
	if r.joined {
		b.ping(p.Worker) // to know, before it has the first job, that it answers
		b.cfg.Logger.Info("worker joined", "worker", p.Worker, "queue", p.Queue, "subjects", p.Subjects, "capacity", p.Capacity, "directed", p.Directed)
	}
	if r.deaf {
		b.cfg.Logger.Warn("jobs sent to a worker do not reach it; they are published to their targets instead: let it subscribe to its subject",
			"worker", p.Worker, "subject", subjects.Worker(b.cfg.Prefix, subjects.KindJob, p.Worker))
	}
}

// release gives jobs back that a worker did not take up; somebody may have them
// still, so the number of the attempt is used up, but it is not charged.
func (b *Bridge) release(fs []*flight) {
	now := b.now()
	for _, f := range fs {
		s := f.ending(job.Release, now)
		s.Spare = true
		b.settler.add(s)
	}
}

// beatResult is what follows a heartbeat.
type beatResult struct {
	joined, deaf bool
	aside        []*flight    // claimed for a queue group, to be set aside
	renewed      []settlement // of leases that begin anew
	absent       []*flight    // the worker does not have them
	done         []parsedAck  // it has completed them
}

// absentAfter is how long after its publish a job counts as absent in a heartbeat
// that does not list it: an earlier one may have been begun before it arrived.
const absentAfter = time.Second

// beat takes a heartbeat in.
func (d *dispatcher) beat(p *beat, now job.Time) (r beatResult) {
	at := d.ticks()
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[p.Worker]
	if w == nil {
		if p.bye && len(p.running) == 0 {
			return beatResult{done: d.listed(nil, p, &beatResult{}, now, at)}
		}
		w = d.worker(p.Worker)
		r.joined = true
		d.relearn.Store(true)
		wake(d.wakeClaim)
	}
	took, patterns, left := w.takes(), w.patterns, w.leaving
	w.heard, w.suspect = at, 0
	r.deaf = w.strike(at)
	w.leaving = p.bye || w.leaving && p.Free == 0
	w.capacity, w.directed, w.patterns, w.covers = p.Capacity, p.Directed, p.Subjects, p.covers
	w.beats++
	r.joined = r.joined || left && !w.leaving
	r.done = d.listed(w, p, &r, now, at)
	if at.sub(w.shown) >= d.renewal || w.shown == 0 {
		w.shown = at
		d.owners.beat(w)
	}
	r.absent, r.aside = d.absent(w, at, p.bye)
	if w.takes() != took || !slices.Equal(w.patterns, patterns) {
		r.aside = append(r.aside, d.cover(w)...)
	}
	d.freed(w)
	if p.bye && len(w.flights) == 0 {
		d.owners.gone(w) // a late heartbeat must not make it a new worker, so it stays known for the TTL
	}
	return r
}

// strike counts the beats in which jobs did not reach w, and reports whether it
// stops being sent any.
func (w *worker) strike(at ticks) (deaf bool) {
	switch {
	case w.missed:
		w.missed = false
		w.strikes++
		return w.strikes == maxStrikes
	case w.strikes > 0 && at.sub(w.struck) > strikeMemory:
		w.strikes = 0
	}
	return false
}

// listed goes through the jobs that a worker says it has, renews the leases of
// those that run and returns those that it has completed. d.mu is held.
func (d *dispatcher) listed(w *worker, p *beat, r *beatResult, now job.Time, at ticks) (done []parsedAck) {
	var others []job.Ref
	for i := range p.running {
		f := d.flights[p.running[i].ID]
		if f == nil || f.gone || f.worker != w || w == nil || !f.Ref().Is(p.running[i]) {
			others = append(others, p.running[i])
			continue
		}
		f.seen, f.absences = w.beats, 0
		f.lane.settled = true // somebody is there
		if at.sub(f.since) >= f.AckWait/2 {
			f.renew(now, at)
			r.renewed = append(r.renewed, f.ending(job.Extend, f.Deadline))
		}
	}
	for i := range p.done {
		if f := d.flights[p.done[i].ID]; f != nil && f.worker == w && w != nil {
			f.seen, f.absences = w.beats, 0
		}
		done = append(done, parsedAck{ref: p.done[i]})
	}
	if w != nil {
		w.busy = max(0, p.Capacity-p.Free-len(p.running))
		w.sharedWith(others)
	}
	return done
}

// sharedWith takes in which of the jobs that w lists are not of this bridge, as
// far as it knows. They are a peer's if that has told so, or if w lists them
// twice: one of this bridge may have been completed behind the heartbeat.
func (w *worker) sharedWith(others []job.Ref) {
	listed := make(map[job.Ref]bool, len(others))
	for _, ref := range others {
		ref = ref.Anywhere()
		if w.strange[ref] {
			w.foreign[ref] = 0
		}
		listed[ref] = true
	}
	for ref := range w.foreign {
		if listed[ref] {
			w.foreign[ref] = 0
		} else if w.foreign[ref]++; w.foreign[ref] == 2 {
			delete(w.foreign, ref)
		}
	}
	w.strange = listed
}

// absent takes jobs from w that its heartbeat does not list: at the second time,
// and at once when it leaves. d.mu is held.
func (d *dispatcher) absent(w *worker, at ticks, bye bool) (sent, aside []*flight) {
	var lost []*flight
	for f := range w.flights {
		switch {
		case f.sent && f.seen == w.beats:
		case bye:
			lost = append(lost, f)
		case f.sent && at.sub(f.since) >= absentAfter:
			if f.absences++; f.absences == 2 {
				lost = append(lost, f)
			}
		}
	}
	if lost == nil {
		return nil, nil
	}
	return d.lose(lost)
}
