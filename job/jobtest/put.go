package jobtest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/delaybridge/delaybridge/job"
)

var putTests = []test{
	{"Stores", testPutStores},
	{"MintsIDs", testPutMintsIDs},
	{"SetsInPlace", testPutSetsInPlace},
	{"AgainInEveryState", testPutAgainInEveryState},
	{"RepeatedInBatch", testPutRepeatedInBatch},
	{"BadJobsHurtNoOther", testPutBadJobs},
	{"NothingAtAll", testEmptyCalls},
}

func testPutStores(h *harness) {
	j := h.mk("a", "orders.new", time.Minute)
	h.mustPut(j)
	i := h.wantState("a", job.Pending)
	h.wantJob(i.Job, j)
	if i.Next != j.Due || i.Attempt != 0 || i.Base != 0 || i.Owner != "" || i.Nonce != 0 || i.Incarnation == 0 {
		h.Errorf("a new job is %+v, want it due at %d and never delivered", i, j.Due)
	}
	if i.Stored != h.suite.Stored && h.suite.Stored != "" {
		h.Errorf("Get says stored %q, want %q", i.Stored, h.suite.Stored)
	}
}

func testPutMintsIDs(h *harness) {
	jobs := h.mkMany(50, "", "orders.new", 0)
	for i := range jobs {
		jobs[i].ID = ""
	}
	h.mustPut(jobs...)
	seen := map[string]bool{}
	for _, j := range jobs {
		if j.ID == "" || !j.Generated || seen[j.ID] {
			h.Fatalf("minted id %q, generated %v, seen before %v", j.ID, j.Generated, seen[j.ID])
		}
		seen[j.ID] = true
		h.wantJob(h.wantState(j.ID, job.Pending).Job, j)
	}
	ds := h.claimDue(0)
	for _, d := range ds {
		if ref := d.Ref(); !seen[d.ID] || !d.Generated || !ref.Generated {
			h.Errorf("delivery %+v is not of a job with a minted id", ref)
		}
	}
	if len(ds) != len(jobs) {
		h.Errorf("%d deliveries of %d jobs", len(ds), len(jobs))
	}
	h.complete(0, ds...)
}

func testPutSetsInPlace(h *harness) {
	jobs := []job.Job{h.mk("a", "orders.new", 0), h.mk("b", "orders.new", 0), h.mk("a", "orders.new", 0)}
	jobs[1].Incarnation = 7
	h.put(jobs...)
	if jobs[0].ID != "a" || jobs[0].Generated || jobs[0].Incarnation == 0 {
		h.Errorf("Put made the job %+v", jobs[0])
	}
	if jobs[2].Incarnation == jobs[0].Incarnation || jobs[2].Incarnation == 0 {
		h.Errorf("two jobs of one id have the incarnations %d and %d", jobs[0].Incarnation, jobs[2].Incarnation)
	}
	if got := h.get("b").Incarnation; jobs[1].Incarnation != 7 || got != 7 {
		h.Errorf("incarnation 7 became %d, stored %d", jobs[1].Incarnation, got)
	}
}

// testPutAgainInEveryState puts the very same job again, as a caller does that
// lost the reply, wherever the job is by then.
func testPutAgainInEveryState(h *harness) {
	for _, replace := range []bool{false, true} {
		jobs := []job.Job{h.mk("known", "orders.new", 0)}
		if !replace {
			jobs[0].ID = ""
		}
		jobs[0].Replace = replace
		again := func(want job.State) {
			h.Helper()
			r := h.put(jobs...)[0]
			h.wantStored(r, jobs[0])
			h.wantState(jobs[0].ID, want)
		}
		h.put(jobs...)
		again(job.Pending)
		d := h.claimOne(0)
		again(job.Running)
		h.mustSettle(0, job.Settlement{Ref: d.Ref(), Outcome: job.Bury, Reason: "broken"})
		again(job.Dead)
		h.reschedule(job.Reschedule{ID: d.ID, Due: h.t0, Requeue: true})
		h.complete(0, h.claimOne(0))
		again(job.Done)
		h.wantNone(time.Hour)
	}
	jobs := []job.Job{h.mk("gone", "orders.new", 0)}
	h.put(jobs...)
	h.cancel(0, "gone")
	h.wantStored(h.put(jobs...)[0], jobs[0])
	h.wantState("gone", job.Cancelled)
	h.wantNone(time.Hour)
}

func testPutRepeatedInBatch(h *harness) {
	first, other, second := h.mk("a", "orders.new", time.Second), h.mk("b", "orders.new", 0), h.mk("a", "orders.new", time.Minute)
	second.Payload = []byte("second")
	elsewhere := h.mk("a", "billing.new", 0)
	res := h.put(first, other, second, elsewhere)
	h.wantStored(res[0], first)
	h.wantStored(res[1], other)
	h.wantDuplicate(res[2], first.Due)
	h.wantConflict(res[3])
	h.wantJob(h.get("a").Job, first)

	same := h.mk("c", "orders.new", time.Millisecond)
	same.Incarnation = 9
	for _, r := range h.put(same, same) {
		h.wantStored(r, same)
	}
	h.wantIDs(h.claimDue(time.Millisecond), "b", "c")
}

func testPutBadJobs(h *harness) {
	h.mustPut(h.mk("elsewhere", "billing.new", 0), h.mk("known", "orders.new", time.Hour))
	long := strings.Repeat("x", 256)
	bad := []struct {
		job  job.Job
		want error
	}{
		{h.mk("elsewhere", "orders.new", 0), job.ErrConflict},
		{h.mk(long, "orders.new", 0), job.ErrHeader},
		{h.mk("no-target", "", 0), job.ErrTarget},
		{h.mk("long-target", long, 0), job.ErrTarget},
		{h.mk("long-lease", "orders.new", 0), job.ErrHeader},
		{h.mk("known", "orders.new", 0), nil},
	}
	bad[4].job.AckWait = job.MaxAckWait + time.Second
	jobs := []job.Job{h.mk("good0", "orders.new", 0)}
	for i, b := range bad {
		jobs = append(jobs, b.job, h.mk("good"+string(rune('1'+i)), "orders.new", 0))
	}
	res := h.put(jobs...)
	for i := 0; i < len(jobs); i += 2 {
		h.wantStored(res[i], jobs[i])
	}
	for i, b := range bad {
		r := res[1+2*i]
		if !errors.Is(r.Err, b.want) || b.want == nil && !r.Duplicate {
			h.Errorf("Put of %.20q: %+v, want error %v", b.job.ID, r, b.want)
		}
	}
	if n := len(h.claimDue(0)); n != 8 {
		h.Errorf("%d jobs due, want 7 good ones and the one that was there", n)
	}
}

// testEmptyCalls makes every call with nothing to do.
func testEmptyCalls(h *harness) {
	h.put()
	h.settle(0)
	h.cancel(0)
	h.reschedule()
	if infos, err := h.store.Get(context.Background(), nil); err != nil || len(infos) != 0 {
		h.Errorf("Get of nothing: %v, %v", infos, err)
	}
	if c := h.claim(job.ClaimRequest{Now: h.t0, Until: h.t0, Max: 10}); len(c.Deliveries) != 0 || c.NextDue != 0 || c.Last != 0 {
		h.Errorf("Claim from an empty store: %+v", c)
	}
	if ds, next := h.expired(0, 10); len(ds) != 0 || next != 0 {
		h.Errorf("Expired of an empty store: %v, next %d", ds, next)
	}
	if w := h.waiting(); len(w) != 0 {
		h.Errorf("targets waiting in an empty store: %q", w)
	}
	if p := h.list(job.Query{Limit: 10}); len(p.Jobs) != 0 || p.Cursor != "" {
		h.Errorf("List of an empty store: %+v", p)
	}
}

var bytesTests = []test{
	{"IDs", testBytesIDs},
	{"Jobs", testBytesJobs},
	{"Targets", testBytesTargets},
}

// oddStrings are legal ids that a careless store would mix up.
func oddStrings() []string {
	return []string{
		"\x00", "\x00\x00", "\xff", "\xfe\xff", "\n", "\r\n", " ", "  ", ".", "a.b", "a.b ", "*", ">", "{0}", "{", "}",
		"0", "00", "-1", "1e5", "nil", "true", "(", "[", ":", "a:b", "%s", "é", "\u2028", "\"", "'", "\\", "A", "a",
		strings.Repeat("x", 255), strings.Repeat("\x00", 255), strings.Repeat("\xff", 255), "0123456789ab", "--__AAzz0099",
	}
}

func testBytesIDs(h *harness) {
	want := map[string]job.Job{}
	for i, id := range oddStrings() {
		j := h.mk(id, "orders.new", time.Duration(i)*time.Second)
		want[id] = j
		h.mustPut(j)
	}
	var jobs []job.Job
	for id, j := range want {
		h.wantJob(h.wantState(id, job.Pending).Job, j)
		jobs = append(jobs, h.mk(id, "orders.new", time.Hour))
	}
	for _, r := range h.put(jobs...) {
		if !r.Duplicate {
			h.Errorf("Put again: %+v, want a duplicate", r)
		}
	}
	listed := h.listAll(job.Query{Limit: 3})
	if len(listed) != len(want) {
		h.Errorf("listed %d jobs of %d", len(listed), len(want))
	}
	ds := h.claimDue(time.Hour)
	h.wantIDs(ds, oddStrings()...)
	h.complete(time.Hour, ds...)
	for id := range want {
		h.wantState(id, job.Done)
	}
}

func testBytesJobs(h *harness) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	full := h.mk("full", "orders.new", time.Microsecond)
	full.ReplyTo = "results.\xc3\xa9"
	full.Ack = job.AckStream
	full.AckWait = 1500 * time.Millisecond
	full.MaxAttempts = 1<<32 - 1
	full.Backoff = []time.Duration{time.Second, 10 * time.Microsecond, 24 * time.Hour}
	full.Header = []job.Field{
		{Name: "X-b", Value: "1"}, {Name: "x-B", Value: string(all)}, {Name: "A"},
		{Name: "X-b", Value: "2"}, {Name: "traceparent", Value: "00-ab"},
	}
	full.Payload = all
	bare := job.Job{ID: "bare", Target: "t", Due: h.t0.Add(2 * time.Microsecond), Ack: job.AckNone, AckWait: time.Millisecond}
	big := h.mk("big", "orders.new", 3*time.Microsecond)
	big.Payload = bytes.Repeat(all, 1024)
	h.mustPut(full, bare, big)
	want := []job.Job{full, bare, big}
	for i, d := range h.claimDue(time.Second) {
		h.wantJob(d.Job, want[i])
		h.wantJob(h.get(d.ID).Job, want[i])
	}
}

// testBytesTargets sets aside and claims under targets that a careless store
// would mix up in the names of its keys.
func testBytesTargets(h *harness) {
	targets := []string{"orders", "orders.new", "orders.{1}", "{", "orders:new", "orders.*", "due", "0", strings.Repeat("t", 255)}
	for i, target := range targets {
		h.mustPut(h.mk("job"+string(rune('a'+i)), target, 0))
	}
	h.wantIDs(h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Blocked: targets}))
	if got := h.waiting(); len(got) != len(targets) {
		h.Errorf("waiting %q, want %q", got, targets)
	}
	for i, target := range targets {
		ds := h.claimAll(job.ClaimRequest{Now: h.t0, Until: h.t0, Target: target})
		h.wantIDs(ds, "job"+string(rune('a'+i)))
	}
	if got := h.waiting(); len(got) != 0 {
		h.Errorf("waiting %q after all were claimed", got)
	}
}
