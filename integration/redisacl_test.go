package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/internal/testredis"
	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/job/jobtest"
	"github.com/delaybridge/delaybridge/redisdelay"
	"github.com/redis/go-redis/v9"
)

// redisRule returns the documented rule of the user of Redis, as arguments of ACL
// SETUSER, without his name, password and keys.
func redisRule(t *testing.T) (rule []string) {
	t.Helper()
	fields := strings.Fields(strings.ReplaceAll(documented(t, "text redis"), "\\\n", " "))
	if len(fields) < 8 || strings.Join(fields[:2], " ") != "ACL SETUSER" {
		t.Fatalf("%s: the Redis rule is %q", securityDoc, fields)
	}
	if at := slices.Index(fields, "-@all"); at > 0 {
		return fields[at:]
	}
	t.Fatalf("%s: the Redis rule does not begin with -@all: %q", securityDoc, fields)
	return nil
}

// redisUser makes a user of Redis.
func redisUser(t *testing.T, admin *redis.Client, name, password, keys string, rule []string) {
	t.Helper()
	args := []any{"acl", "setuser", name, "reset", "on", password, "~" + keys}
	for _, r := range rule {
		args = append(args, r)
	}
	if err := admin.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func redisAdmin(t *testing.T, r *testredis.Server) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: r.Addr()}
	c := redis.NewClient(o)
	if err := c.Do(context.Background(), "acl", "setuser", "root", "on", ">root", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	o.Username, o.Password = "root", "root"
	c = redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The whole contract of the store holds for a user with the documented rule.
func TestRedisUserKeepsTheContract(t *testing.T) {
	t.Parallel()
	r := testredis.Start(t)
	admin := redisAdmin(t, r)
	redisUser(t, admin, "default", "nopass", "delay:*", redisRule(t))
	opened := 0
	open := func(t *testing.T) job.Store {
		opened++
		s, err := redisdelay.Open(context.Background(), redisdelay.Options{
			URL: r.URL(), Prefix: "delay", BridgeID: fmt.Sprintf("b%d", opened), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	jobtest.Suite{
		Open: func(t *testing.T) job.Store {
			if err := admin.FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			return open(t)
		},
		Peer:   func(t *testing.T, _ job.Store) job.Store { return open(t) },
		Stored: job.StoredRedis,
	}.Run(t)
}

// A bridge with the documented rule turns to its disk and back.
func TestRedisUserThroughAnOutage(t *testing.T) {
	t.Parallel()
	r := testredis.Start(t, "--appendfsync", "always")
	redisUser(t, redisAdmin(t, r), "default", "nopass", "delay:*", redisRule(t))
	s := newStandOn(t, r)
	s.worker("acl.x", done)
	s.accept(s.client(), s.in(0, "acl.x"))
	s.proxy.Stall()
	m := s.in(2*time.Second, "acl.x")
	if a := s.publish(s.client(), m); a.Stored != "local" {
		t.Errorf("stored %q while Redis is away", a.Stored)
	}
	s.proxy.Resume()
	s.awaitDrained()
	s.stopInOrder()
	for _, line := range s.bridge.warned {
		if strings.Contains(line, "NOPERM") || strings.Contains(line, "executing the script can't") {
			t.Error(line)
		}
	}
}

var statLine = regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):`)

// Each command of the documented rule is needed: without it an error names it.
func TestRedisUserWithOneCommandLess(t *testing.T) {
	t.Parallel()
	r := testredis.Start(t)
	admin := redisAdmin(t, r)
	rule := redisRule(t)
	redisUser(t, admin, "full", ">full", "full:*", rule)
	if err := everyCall(as(r, "full"), "full"); err != nil {
		t.Fatalf("with the whole rule: %v", err)
	}
	stats, err := admin.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	for _, m := range statLine.FindAllStringSubmatch(stats, -1) {
		used = append(used, m[1])
	}
	var needed []string
	for _, command := range rule[1:] {
		name := strings.TrimPrefix(command, "+")
		needed = append(needed, name)
		if !slices.Contains(used, name) {
			t.Errorf("nothing here uses %s", name)
		}
		t.Run(name, func(t *testing.T) {
			user := "no-" + strings.ReplaceAll(name, "|", "-")
			less := slices.DeleteFunc(slices.Clone(rule), func(c string) bool { return c == command })
			redisUser(t, admin, user, ">"+user, user+":*", less)
			err := everyCall(as(r, user), user)
			if err == nil {
				t.Fatalf("everything works without %s", name)
			}
			if text := err.Error(); !strings.Contains(text, "'"+name+"'") && !strings.Contains(text, "+"+name) {
				t.Errorf("no error names %s: %v", name, err)
			}
		})
	}
	slices.Sort(needed)
	if known := redisdelay.Commands(); !slices.Equal(known, needed) {
		t.Errorf("%s has %q, but doctor looks for %q", securityDoc, needed, known)
	}
}

func as(r *testredis.Server, user string) string {
	return "redis://" + user + ":" + user + "@" + r.Addr() + "/0"
}

// everyCall makes a store do all it can, and returns all that went wrong.
func everyCall(url, prefix string) (all error) {
	ctx := context.Background()
	s, err := redisdelay.Open(ctx, redisdelay.Options{
		URL: url, Prefix: prefix, BridgeID: "b1", Shards: 1, DedupWindow: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	failed := func(err error) {
		if err != nil {
			all = errors.Join(all, err)
		}
	}
	defer func() { failed(s.Close()) }()
	now := job.At(time.Now())
	put := func(id, target string, replace bool) job.Job {
		j := []job.Job{{ID: id, Target: target, Due: now, Expires: now.Add(time.Hour), AckWait: time.Second, MaxAttempts: 3, Replace: replace, Payload: []byte("p")}}
		_, err := s.Put(ctx, j)
		failed(err)
		return j[0]
	}
	claim := func(r job.ClaimRequest) []job.Delivery {
		r.Now, r.Until, r.Max = now, now, 100
		r.Owner = "b1"
		c, err := s.Claim(ctx, r)
		failed(err)
		return c.Deliveries
	}
	settle := func(o job.Outcome, ds ...job.Delivery) {
		var list []job.Settlement
		for _, d := range ds {
			list = append(list, job.Settlement{Ref: d.Ref(), Outcome: o, At: now.Add(time.Second), Target: d.Target, Due: d.Due, Owner: "b1/w1"})
		}
		_, err := s.Settle(ctx, now, list)
		failed(err)
	}
	for i := range 9 {
		put(fmt.Sprintf("id%d", i), "t.x", false)
		put("", "t.x", false)
	}
	put("id1", "t.x", true)
	ds := claim(job.ClaimRequest{})
	for i, o := range []job.Outcome{job.Extend, job.Own, job.Retry, job.Release, job.SetAside, job.Bury} {
		if i < len(ds) {
			settle(o, ds[i])
		}
	}
	half := ds[min(6, len(ds)):]
	settle(job.Complete, half...)
	settle(job.Complete, half...) // again
	settle(job.Extend, ds...)     // of leases that have ended
	now = now.Add(2 * time.Second)
	_, _, err = s.Expired(ctx, now, 10)
	failed(err)
	put("wait", "t.y", false)
	claim(job.ClaimRequest{Blocked: []string{"t.y"}})
	_, err = s.Waiting(ctx)
	failed(err)
	_, err = s.Reschedule(ctx, []job.Reschedule{{ID: "wait", Due: now}})
	failed(err)
	put("wait", "t.y", false)
	claim(job.ClaimRequest{Blocked: []string{"t.y"}})
	ds = claim(job.ClaimRequest{Target: "t.y", Slots: []job.Slot{{Owner: "b1/w1", Free: 3}}})
	settle(job.Complete, ds...)
	put("late", "t.x", false)
	ds = claim(job.ClaimRequest{})
	_, err = s.Get(ctx, []string{"late", "id3", "nobody"})
	failed(err)
	settle(job.Bury, ds...)
	for _, state := range []job.State{job.Pending, job.Running, job.Dead} {
		_, err = s.List(ctx, job.Query{State: state, Limit: 2})
		failed(err)
	}
	for page := (job.Page{}); ; {
		page, err = s.List(ctx, job.Query{State: job.Dead, Limit: 1, Target: "t.x", Cursor: page.Cursor})
		failed(err)
		if page.Cursor == "" {
			break
		}
	}
	_, err = s.Count(ctx)
	failed(err)
	put("later", "t.x", false)
	_, err = s.Reschedule(ctx, []job.Reschedule{{ID: "later", Due: now.Add(time.Hour)}, {ID: "late", Due: now, Requeue: true}})
	failed(err)
	_, _, err = s.Upcoming(ctx, 0, now.Add(2*time.Hour), 10)
	failed(err)
	_, err = s.Cancel(ctx, now, job.ByIDs("later", "id3"))
	failed(err)
	_, err = s.Prune(ctx, now.Add(time.Hour), 10)
	failed(err)
	merged := job.Job{ID: "merged", Incarnation: 7, Target: "t.x", Due: now, Expires: now.Add(time.Hour), AckWait: time.Second}
	_, err = s.Merge(ctx, now, []job.MergeItem{{Info: job.Info{Job: merged, State: job.Pending, Next: now}}})
	failed(err)
	failed(s.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w1", Beat: true, Added: []string{"a"}}}))
	failed(s.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w1", Beat: true, Removed: []string{"a"}}, {Worker: "w2", Added: []string{"c"}}}))
	failed(s.WriteOwners(ctx, []job.OwnerUpdate{{Worker: "w1", Beat: true}, {Worker: "w2", Gone: true}}))
	failed(s.SavePauses(ctx, job.Pauses{"t.>": {Paused: true, At: now}}))
	_, err = s.LoadPauses(ctx)
	failed(err)
	failed(s.Probe(ctx))
	return all
}
