package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/adapter"
	"github.com/delaybridge/delaybridge/job"
)

func (r *rig) pause(pattern string) {
	r.t.Helper()
	if err := r.bridge.Pause(context.Background(), pattern); err != nil {
		r.t.Fatalf("Pause %s: %v", pattern, err)
	}
}

func (r *rig) resume(pattern string) {
	r.t.Helper()
	if err := r.bridge.Resume(context.Background(), pattern); err != nil {
		r.t.Fatalf("Resume %s: %v", pattern, err)
	}
}

// aside waits until n jobs are set aside and none is claimed.
func (r *rig) aside(n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprint(n, " jobs set aside"), func() bool {
		c, err := r.store.Count(context.Background())
		return err == nil && c.Aside == n && c.Running == 0
	})
}

func TestPausedTargetWaits(t *testing.T) {
	const jobs = 300
	r := newRig(t)
	x, y := r.worker("orders.x"), r.worker("orders.y")
	r.pause("orders.x")
	r.scheduleAll(jobs, always("delay.in.0s.orders.x"), func(i int) string { return fmt.Sprint(i) })
	r.schedule("delay.in.0s.orders.y", "y")
	r.done(receive(t, y))
	r.aside(jobs)
	nothing(t, x)
	r.resume("orders.x")
	seen := map[string]bool{}
	for range jobs {
		m := receive(t, x)
		if seen[string(m.Data)] || m.Header.Get("Delay-Attempt") != "1" {
			t.Errorf("job %s arrived again, or as attempt %s", m.Data, m.Header.Get("Delay-Attempt"))
		}
		seen[string(m.Data)] = true
		r.done(m)
	}
	nothing(t, x)
}

// TestPauseStopsWhatIsClaimed pauses jobs that the bridge has leased already,
// because they are due soon.
func TestPauseStopsWhatIsClaimed(t *testing.T) {
	r := newRig(t, withConfig(func(c *adapter.Config) { c.ClaimAhead = time.Second }))
	x := r.worker("orders.x")
	a := r.schedule("delay.in.900ms.orders.x", "x")
	r.becomes(a.ID, job.Running)
	r.pause("orders.>")
	r.aside(1)
	r.resume("orders.>")
	m := receive(t, x)
	if m.Header.Get("Delay-Attempt") != "1" || time.Now().Before(a.Due) {
		t.Errorf("attempt %s, %v before it is due", m.Header.Get("Delay-Attempt"), time.Until(a.Due))
	}
	r.done(m)
}

func TestPausedWorkersGetNothing(t *testing.T) {
	r := newRig(t, withConfig(fast))
	w := r.owner("w1", 10, "orders.x")
	w.beat()
	r.pause(">")
	r.scheduleAll(5, always("delay.in.0s.orders.x"), always("x"))
	r.aside(5)
	w.beat()
	r.aside(5)
	nothing(t, w.jobs)
	r.resume(">")
	for range 5 {
		m := receive(t, w.jobs)
		r.done(m)
	}
}

// TestPauseOfAParkedTarget: its workers come while it is paused.
func TestPauseOfAParkedTarget(t *testing.T) {
	r := newRig(t)
	r.schedule("delay.in.0s.orders.x", "x")
	eventually(t, "the target is parked", func() bool {
		p := r.bridge.Parked(10)
		return len(p) == 1 && p[0].Target == "orders.x" && p[0].Reason == "no responders"
	})
	r.pause("orders.x")
	x := r.worker("orders.x")
	r.worker("orders.y")
	r.aside(1)
	nothing(t, x)
	r.resume("orders.x")
	r.done(receive(t, x))
}

func TestPauseAndResumeAnswers(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	for _, bad := range []string{"", "a..b", "a.>.b", "a b"} {
		if err := r.bridge.Pause(ctx, bad); !errors.Is(err, job.ErrTarget) {
			t.Errorf("Pause %q: %v", bad, err)
		}
		if err := r.bridge.Resume(ctx, bad); !errors.Is(err, job.ErrTarget) {
			t.Errorf("Resume %q: %v", bad, err)
		}
	}
	r.pause("orders.>")
	r.pause("orders.>")
	r.pause("mail")
	if got := r.bridge.Paused(); !slices.Equal(got, []string{"mail", "orders.>"}) {
		t.Errorf("paused: %v", got)
	}
	for _, covered := range []string{"orders.x", "*.x.y"} {
		err := r.bridge.Resume(ctx, covered)
		if covered == "orders.x" && !errors.Is(err, job.ErrConflict) || covered != "orders.x" && err != nil {
			t.Errorf("Resume %s: %v", covered, err)
		}
	}
	r.resume("unpaused")
	r.resume(">")
	if got := r.bridge.Paused(); len(got) != 0 {
		t.Errorf("paused after all were resumed: %v", got)
	}
}

// pauseStore is a PauseStore in memory, which can fail.
type pauseStore struct {
	mu    sync.Mutex
	known job.Pauses
	err   error
}

func (s *pauseStore) LoadPauses(context.Context) (job.Pauses, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known), s.err
}

func (s *pauseStore) SavePauses(_ context.Context, p job.Pauses) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.known.Merge(p)
	}
	return s.err
}

func (s *pauseStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *pauseStore) has(pattern string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[pattern].Paused
}

// TestPauseOutlivesTheBridge restarts the bridge while one of its stores does not
// answer; afterwards that one has caught up.
func TestPauseOutlivesTheBridge(t *testing.T) {
	disk, redis := &pauseStore{known: job.Pauses{}}, &pauseStore{known: job.Pauses{}, err: errors.New("away")}
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Pauses = []adapter.PauseStore{disk, redis} }))
	x := r.worker("orders.x")
	r.pause("orders.x")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.schedule("delay.in.0s.orders.x", "x")
	r.aside(1)
	nothing(t, x)
	redis.fail(nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if !redis.has("orders.x") {
		t.Error("the store that was away does not know of the pause after a start")
	}
	disk.fail(errors.New("full"))
	r.resume("orders.x")
	r.done(receive(t, x))
}

func TestPauseThatNoStoreKeeps(t *testing.T) {
	broken := &pauseStore{err: errors.New("broken")}
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Pauses = []adapter.PauseStore{broken} }))
	if err := r.bridge.Pause(context.Background(), "orders.x"); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Pause: %v, want ErrUnavailable", err)
	}
	if got := r.bridge.Paused(); len(got) != 0 {
		t.Errorf("paused all the same: %v", got)
	}
}

// TestPausesThatCannotBeReadAreTold: what an operator has paused may run.
func TestPausesThatCannotBeReadAreTold(t *testing.T) {
	var log bytes.Buffer
	torn := &pauseStore{err: errors.New("paused.json: torn")}
	r := newRig(t, withConfig(func(c *adapter.Config) {
		c.Logger, c.Pauses = slog.New(slog.NewTextHandler(&log, nil)), []adapter.PauseStore{torn}
	}))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "paused.json: torn") {
		t.Errorf("the log says %q", text)
	}
}

// TestPeersFollowAPause has two bridges over one store.
func TestPeersFollowAPause(t *testing.T) {
	r := newRig(t)
	kept := &pauseStore{known: job.Pauses{}}
	peer := newRig(t, beside(r), withConfig(func(c *adapter.Config) { c.ID, c.Pauses = "b2", []adapter.PauseStore{kept} }))
	r.pause("orders.x")
	eventually(t, "the peer has paused it, and kept that", func() bool {
		return slices.Equal(peer.bridge.Paused(), []string{"orders.x"}) && kept.has("orders.x")
	})
	peer.resume("orders.x")
	eventually(t, "the first has resumed it", func() bool { return len(r.bridge.Paused()) == 0 })
}

// TestPausesHaveRoom: whoever may pause single targets, and has done so with as many as
// are remembered, keeps nobody from pausing all.
func TestPausesHaveRoom(t *testing.T) {
	disk := &pauseStore{known: job.Pauses{}}
	for i := range 1000 {
		disk.known[fmt.Sprintf("orders.%d", i)] = job.Pause{Paused: i%2 == 0, At: job.At(time.Now())}
	}
	r := newRig(t, withConfig(func(c *adapter.Config) { c.Pauses = []adapter.PauseStore{disk} }))
	ctx := context.Background()
	for _, one := range []string{"orders.1000", "orders.*x"} {
		if err := r.bridge.Pause(ctx, one); !errors.Is(err, job.ErrFull) {
			t.Errorf("Pause %s: %v, want ErrFull", one, err)
		}
	}
	for _, pattern := range []string{"orders.1", "orders.2", "billing.*", ">"} {
		r.pause(pattern)
	}
	for i := range 100 - 2 {
		r.pause(fmt.Sprintf("t%d.*", i))
	}
	if err := r.bridge.Pause(ctx, "one.more.*"); !errors.Is(err, job.ErrFull) {
		t.Errorf("Pause without end: %v, want ErrFull", err)
	}
	r.resume(">")
	if got := r.bridge.Paused(); len(got) != 0 {
		t.Errorf("paused after all were resumed: %v", got)
	}
}
