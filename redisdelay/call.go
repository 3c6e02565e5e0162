package redisdelay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// kind is a kind of call that writes. Per kind, bridge and shard Redis keeps
// the number and result of the last call, so at most one is under way.
type kind int

const (
	ingestKind kind = iota
	claimKind
	settleKind
	cancelKind
	rescheduleKind
	pruneKind
	mergeKind
	numKinds
)

var kindScripts = [numKinds]*script{ingestScript, claimScript, settleScript, cancelScript, rescheduleScript, pruneScript, mergeScript}

// numberLen is the length of a call number in meta.
const numberLen = 16

type kindState struct {
	script *script
	field  string        // in meta
	busy   chan struct{} // holds one token while a call is under way
}

func (s *Store) initKinds(bridgeID string) {
	for i := range s.kinds {
		sc := kindScripts[i]
		s.kinds[i] = kindState{script: sc, field: sc.name + ":" + bridgeID, busy: make(chan struct{}, 1)}
		s.confirmed[i] = make([]atomic.Int64, s.opts.Shards)
	}
}

// lock waits until no call of this kind is under way; unlock lets the next in.
func (s *Store) lock(ctx context.Context, k kind) error {
	select {
	case s.kinds[k].busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redisdelay: %s: waiting for the call before: %w", s.kinds[k].script.name, ctx.Err())
	}
}

func (s *Store) unlock(k kind) { <-s.kinds[k].busy }

func newEpoch() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// call is one script call on one shard. Its arguments stay the same however
// often it is sent, except for the epoch and the deadline.
type call struct {
	script   *script
	shard    int
	args     []any // the whole command
	argv     int   // where ARGV begins
	numbered bool
	kind     kind  // of a numbered call
	number   int64 // likewise
	reply    []any // once done
	cmd      *redis.Cmd
}

// The fields of ARGV that every numbered script has; see the prologue.
const (
	argEpoch = iota
	argDeadline
	argField
	argNumber
	argLatest
	argWindow
	numCommonArgs
)

// newCall begins a call of a read-only script; append its ARGV to args.
func (s *Store) newCall(sc *script, shard int, keys ...string) *call {
	return s.newCallOf(sc, shard, 8, keys...)
}

// newCallOf is newCall with room for so many ARGV.
func (s *Store) newCallOf(sc *script, shard, argv int, keys ...string) *call {
	all := s.keys[shard]
	c := &call{script: sc, shard: shard, args: make([]any, 0, 3+len(all)+len(keys)+argv)}
	c.args = append(c.args, "evalsha", sc.sha, len(all)+len(keys))
	for _, k := range all {
		c.args = append(c.args, k)
	}
	for _, k := range keys {
		c.args = append(c.args, k)
	}
	c.argv = len(c.args)
	return c
}

// newNumbered begins a numbered call with room for extra arguments; the caller
// holds the kind's lock.
func (s *Store) newNumbered(k kind, shard, extra int, keys ...string) *call {
	c := s.newCallOf(s.kinds[k].script, shard, numCommonArgs+extra, keys...)
	c.numbered, c.kind, c.number = true, k, s.number.Add(1)
	number := fmt.Sprintf("%0*d", numberLen, c.number)
	c.args = append(c.args, "", "", s.kinds[k].field, number, s.latest.Load(), s.opts.DedupWindow.Microseconds())
	return c
}

// use makes the call run another script that takes the same arguments.
func (c *call) use(sc *script) { c.script, c.args[1] = sc, sc.sha }

func (c *call) add(args ...any) { c.args = append(c.args, args...) }

// Statuses of a numbered script's reply.
const (
	statusDone = iota
	statusLate
	statusEpoch
	statusStale
)

const (
	minPause = 5 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// runNumbered sends calls that write, in one pipeline, and repeats those that
// failed until all are done or ctx ends; an error leaves their outcome unknown.
func (s *Store) runNumbered(ctx context.Context, calls []*call) error {
	return s.repeat(ctx, calls, func(c *call, sent, received time.Time) error {
		status, at, err := c.status()
		if err != nil {
			return err
		}
		s.clock.observe(at, sent, received)
		switch status {
		case statusDone:
			s.confirm(c)
			return nil
		case statusLate:
			return errLate
		case statusEpoch:
			return errEpoch
		default:
			return fmt.Errorf("%w: another process uses bridge id %q; give each its own", errStale, s.opts.BridgeID)
		}
	})
}

// runRead sends calls of read-only scripts likewise.
func (s *Store) runRead(ctx context.Context, calls []*call) error {
	return s.repeat(ctx, calls, func(*call, time.Time, time.Time) error { return nil })
}

var (
	errLate  = errors.New("the call reached Redis after its deadline")
	errEpoch = errors.New("redis began anew")
	errStale = errors.New("a newer call came first")
	errReply = errors.New("unexpected reply")
)

// repeat sends calls until check accepts the reply of each.
func (s *Store) repeat(ctx context.Context, calls []*call, check func(*call, time.Time, time.Time) error) error {
	pause := minPause
	for {
		failed, err := s.send(ctx, calls, check)
		if len(failed) == 0 {
			return nil
		}
		err = fmt.Errorf("redisdelay: %s on shard %d: %w", failed[0].script.name, failed[0].shard, err)
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		wait, rerr := s.nextAttempt(ctx, failed, err)
		if rerr != nil {
			return rerr
		}
		calls = failed
		if wait {
			if !sleep(ctx, pause) {
				return errors.Join(err, ctx.Err())
			}
			pause = min(2*pause, maxPause)
		}
	}
}

// nextAttempt prepares the next attempt after err; it returns an error when there
// should be none, and whether to pause first.
func (s *Store) nextAttempt(ctx context.Context, failed []*call, err error) (wait bool, _ error) {
	switch {
	case errors.Is(err, errLate): // the reply has corrected the clock
		return false, nil
	case errors.Is(err, errEpoch):
		return false, s.verify(ctx, s.client)
	case hasReply(err, "NOSCRIPT"):
		// Loading may fail for the reasons that the call may; then the next
		// attempt fails too, after a pause.
		return s.loadScripts(ctx) != nil, nil
	case !passing(err):
		return false, err
	}
	return true, nil
}

func hasReply(err error, prefix string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), prefix)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send sends calls once, in one pipeline, and returns those that failed with
// the error of the gravest.
func (s *Store) send(ctx context.Context, calls []*call, check func(*call, time.Time, time.Time) error) ([]*call, error) {
	sent := time.Now()
	for _, c := range calls {
		s.stamp(ctx, c, sent)
		c.cmd = redis.NewCmd(ctx, c.args...)
		c.cmd.SetFirstKeyPos(3)
	}
	if len(calls) == 1 {
		_ = s.client.Process(ctx, calls[0].cmd) // the error is the command's, too
	} else {
		pipe := s.client.Pipeline()
		for _, c := range calls {
			_ = pipe.Process(ctx, c.cmd)
		}
		exec(ctx, pipe)
	}
	received := time.Now()
	var failed []*call
	var worst error
	for _, c := range calls {
		err := c.take()
		if err == nil {
			err = check(c, sent, received)
		}
		if err != nil {
			failed = append(failed, c)
			if worst == nil || passing(worst) {
				worst = err
			}
		}
	}
	if len(calls) > 0 {
		s.observeCall(calls[0].script.name, received.Sub(sent), worst)
	}
	return failed, worst
}

// exec runs a pipeline; the errors are those of its commands. The client gives them
// none when Redis refuses what is sent first on a new connection.
func exec(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return
	}
	for _, c := range cmds {
		c.SetErr(err)
	}
}

// stamp sets what changes between attempts: the epoch, and the time in Redis'
// clock after which the script refuses to act, since nobody waits for it then.
func (s *Store) stamp(ctx context.Context, c *call, now time.Time) {
	if !c.numbered {
		return
	}
	deadline := now.Add(s.opts.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.args[c.argv+argEpoch] = s.epoch(c.shard)
	c.args[c.argv+argDeadline] = s.clock.micro(deadline)
}

// take moves the reply out of the command.
func (c *call) take() error {
	v, err := c.cmd.Result()
	if err != nil {
		return denied(c.script.source, err)
	}
	var ok bool
	if c.reply, ok = v.([]any); !ok {
		return fmt.Errorf("%w: %T", errReply, v)
	}
	return nil
}

// status reads the first two fields of a numbered script's reply.
func (c *call) status() (status, redisMicro int64, err error) {
	if len(c.reply) >= 2 {
		s, ok1 := c.reply[0].(int64)
		at, ok2 := c.reply[1].(int64)
		if ok1 && ok2 {
			return s, at, nil
		}
	}
	return 0, 0, fmt.Errorf("%w of %d fields", errReply, len(c.reply))
}

// strings returns a field of the reply that is a list of strings.
func (c *call) strings(i int) []string {
	if i >= len(c.reply) {
		return nil
	}
	list, _ := c.reply[i].([]any)
	out := make([]string, len(list))
	for k, v := range list {
		switch v := v.(type) {
		case string:
			out[k] = v
		case int64:
			out[k] = strconv.FormatInt(v, 10)
		}
	}
	return out
}
