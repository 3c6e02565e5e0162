package memdelay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/delaybridge/delaybridge/job"
	"github.com/delaybridge/delaybridge/memdelay"
	"github.com/delaybridge/delaybridge/memdelay/wal"
	"github.com/delaybridge/delaybridge/memdelay/wal/crashfs"
)

var ctx = context.Background()

// simple returns a job due at that time.
func simple(id string, due job.Time) job.Job {
	return job.Job{ID: id, Target: "t", Due: due, AckWait: time.Minute, Payload: []byte("payload of " + id)}
}

// mustPut puts jobs, each of which must be stored.
func mustPut(t testing.TB, s *memdelay.Store, jobs ...job.Job) {
	t.Helper()
	for i, r := range must(s.Put(ctx, jobs)) {
		if r.Err != nil || r.Duplicate {
			t.Fatalf("Put of %q: %+v", jobs[i].ID, r)
		}
	}
}

func states(t testing.TB, s *memdelay.Store, ids ...string) string {
	t.Helper()
	var b strings.Builder
	for _, i := range must(s.Get(ctx, ids)) {
		fmt.Fprintf(&b, "%s %s %d; ", i.ID, i.State, i.Attempt)
	}
	return b.String()
}

func wantStates(t testing.TB, s *memdelay.Store, want string, ids ...string) {
	t.Helper()
	if got := states(t, s, ids...); got != want {
		t.Errorf("jobs are\n%s, want\n%s", got, want)
	}
}

// dirBytes is what the files in dir take.
func dirBytes(t testing.TB, dir string) (total int64) {
	t.Helper()
	for _, e := range must(os.ReadDir(dir)) {
		if info, err := e.Info(); err == nil { // it may be gone by now
			total += info.Size()
		}
	}
	return total
}

// TestRescheduledJobsStaySmall reschedules all jobs many times and looks at what
// they take on disk all along. DELAYBRIDGE_SOAK makes it longer.
func TestRescheduledJobsStaySmall(t *testing.T) {
	n, rounds := 20_000, 30
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		n, rounds = 100_000, 100
	}
	dir := t.TempDir()
	s := open(t, dir, memdelay.Options{})
	list := make([]job.Reschedule, n)
	jobs := make([]job.Job, n)
	for i := range list {
		jobs[i] = simple(fmt.Sprintf("job-%06d", i), job.Time(i))
		jobs[i].Payload = make([]byte, 256)
		list[i] = job.Reschedule{ID: jobs[i].ID, Due: job.Time(i)}
	}
	for part := range slices.Chunk(jobs, 1000) {
		mustPut(t, s, part...)
	}
	live, most := s.Usage().Bytes, int64(0)
	for range rounds {
		for from := 0; from < n; from += 1000 {
			must(s.Reschedule(ctx, list[from:from+1000]))
			most = max(most, dirBytes(t, dir))
		}
	}
	t.Logf("%d bytes in %d jobs, at most %.2f times as many on disk", live, n, float64(most)/float64(live))
	if most > 3*live+4<<20 { // and a segment: few jobs are none the better for smaller ones
		t.Errorf("%d bytes in jobs took up to %d on disk", live, most)
	}
}

// TestIdleStoreShrinks: what many jobs took is given back once they have ended
// and time has passed, though nothing else happens.
func TestIdleStoreShrinks(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, memdelay.Options{})
	jobs := make([]job.Job, 50_000)
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = fmt.Sprintf("job-%06d", i)
		jobs[i] = simple(ids[i], 1)
		jobs[i].Payload = make([]byte, 1000)
	}
	mustPut(t, s, jobs...)
	must(s.Cancel(ctx, 2, job.ByIDs(ids...)))
	before := dirBytes(t, dir)
	deadline := time.Now().Add(20 * time.Second)
	for now := job.Time(1e12); dirBytes(t, dir) > 40<<20 && time.Now().Before(deadline); now += 1e7 {
		must(s.Claim(ctx, job.ClaimRequest{Now: now, Until: now, Max: 1}))
		mustPut(t, s, simple(fmt.Sprint("tick", now), now+1)) // an fsync, so that the loop is no busy one
	}
	if after := dirBytes(t, dir); after > 40<<20 {
		t.Errorf("%d bytes on disk at rest, %d before", after, before)
	}
}

// snapshots returns a directory with two snapshots at least, and the ids of the
// jobs that it holds.
func snapshots(t *testing.T) (dir string, ids []string) {
	t.Helper()
	dir = t.TempDir()
	count := func() int { return len(must(filepath.Glob(filepath.Join(dir, "*.snapshot")))) }
	for range 100 { // closing may meet the moment when there is one only
		s, err := memdelay.Open(dir, memdelay.Options{SnapshotBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 200 && (i == 0 || count() < 2); i++ {
			ids = append(ids, fmt.Sprint("job", len(ids)))
			mustPut(t, s, simple(ids[len(ids)-1], job.Time(len(ids))))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if count() == 2 {
			return dir, ids
		}
	}
	t.Fatal("there are never two snapshots")
	return "", nil
}

func flip(t *testing.T, path string, at int) {
	t.Helper()
	b := must(os.ReadFile(path))
	b[at] ^= 0x10
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedSnapshot: the one before and its log take the place of a damaged
// one, with all jobs; where there is nothing to take its place, Open refuses,
// names the file and leaves all as it is, and Salvage finds what the log has.
func TestDamagedSnapshot(t *testing.T) {
	for _, at := range []int{0, 9, 17, 25, 40, 200} {
		dir, ids := snapshots(t)
		list := must(filepath.Glob(filepath.Join(dir, "*.snapshot")))
		newest := list[len(list)-1]
		flip(t, newest, at)
		if r := must(memdelay.Inspect(dir)); !r.Damaged() || !strings.Contains(r.String(), "damaged") || r.Pending != len(ids) {
			t.Errorf("byte %d: Inspect does not see it, or not the jobs: %v", at, r)
		}
		s, err := memdelay.Open(dir, memdelay.Options{})
		if err != nil {
			t.Fatalf("byte %d: Open: %v", at, err)
		}
		if u := s.Usage(); u.Jobs != len(ids) {
			t.Errorf("byte %d: %d jobs of %d", at, u.Jobs, len(ids))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, older := range list[:len(list)-1] {
			flip(t, older, at)
		}
		if _, err = memdelay.Open(dir, memdelay.Options{}); !errors.Is(err, wal.ErrDamaged) || !strings.Contains(err.Error(), newest) {
			t.Errorf("byte %d: Open without a good snapshot: %v, want ErrDamaged that names %s", at, err, newest)
		}
		to := filepath.Join(t.TempDir(), "new")
		if r := must(memdelay.Salvage(dir, to)); !r.Damaged() {
			t.Errorf("byte %d: Salvage does not see the damage", at)
		}
		open(t, to, memdelay.Options{})
	}
}

func TestSalvage(t *testing.T) {
	dir, ids := snapshots(t)
	s, err := memdelay.Open(dir, memdelay.Options{Verdicts: true})
	if err != nil {
		t.Fatal(err)
	}
	d := must(s.Claim(ctx, job.ClaimRequest{Now: 1, Until: 1, Max: 1})).Deliveries[0]
	must(s.Cancel(ctx, 1, job.ByIDs("job1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "new")
	r := must(memdelay.Salvage(dir, to))
	if r.Damaged() || r.Running != 1 || r.Pending != len(ids)-2 || r.Notes != 1 || r.Verdicts != 1 {
		t.Errorf("salvaged %v, want a running job, %d pending, a note and a verdict", r, len(ids)-2)
	}
	again := open(t, to, memdelay.Options{Verdicts: true})
	wantStates(t, again, "job0 running 1; job1 cancelled 0; job2 pending 0; ", "job0", "job1", "job2")
	if res := must(again.Settle(ctx, 1, []job.Settlement{{Ref: d.Ref()}})); res[0] != job.Settled {
		t.Errorf("the delivery is not known any more: %v", res)
	}
	if _, err := memdelay.Salvage(dir, to); err == nil || !strings.Contains(err.Error(), to) {
		t.Errorf("Salvage into a directory that is used: %v", err)
	}
}

// onFS opens a durable store on a file system in memory.
func onFS(t *testing.T, fs *crashfs.FS) *memdelay.Store {
	t.Helper()
	s, err := memdelay.Open("/store", memdelay.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDiskFull: a put is refused and undone, what was there stays, and all goes
// on once there is room, without a restart.
func TestDiskFull(t *testing.T) {
	fs, synced := crashfs.New(1), make(chan struct{}, 1)
	s, err := memdelay.Open("/store", memdelay.Options{FS: fs, OnSync: func(time.Duration, int, int) {
		select {
		case synced <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, simple("kept", 1), simple("replaced", 1000))
	fs.SetSpace(1)
	refused := func(jobs ...job.Job) {
		t.Helper()
		for _, r := range must(s.Put(ctx, jobs)) {
			if !errors.Is(r.Err, job.ErrFull) || !strings.Contains(r.Err.Error(), "/store") || !strings.Contains(r.Err.Error(), "free space") {
				t.Errorf("Put while the disk is full: %+v", r)
			}
		}
	}
	replacing := simple("replaced", 2000)
	replacing.Replace = true
	large := simple("large", 1) // not even what the log has reserved is enough
	large.Payload = make([]byte, 2<<20)
	refused(simple("new", 1), replacing, large) // when it is noticed
	refused(simple("new", 1))                   // at once
	if c, err := s.Claim(ctx, job.ClaimRequest{Now: 1, Until: 1, Max: 9}); !errors.Is(err, job.ErrFull) || len(c.Deliveries) > 0 {
		t.Errorf("Claim while the disk is full: %+v, %v", c, err)
	}
	if u := s.Usage(); u.LogErr == nil || u.Jobs != 2 {
		t.Errorf("usage %+v, want an error of the log and 2 jobs", u)
	}
	if i := must(s.Get(ctx, []string{"replaced"})); i[0].Due != 1000 {
		t.Errorf("the job that was to be replaced is %+v", i[0])
	}
	for len(synced) > 0 {
		<-synced
	}
	fs.SetSpace(0)
	<-synced // the log looks again by itself
	for s.Usage().LogErr != nil {
		runtime.Gosched() // it is about to say so
	}
	mustPut(t, s, simple("later", 1))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = onFS(t, fs)
	defer s.Close()
	wantStates(t, s, "kept pending 0; replaced pending 0; later pending 0; new  0; large  0; ", "kept", "replaced", "later", "new", "large")
	if i := must(s.Get(ctx, []string{"replaced"})); i[0].Due != 1000 {
		t.Errorf("after a restart the job that was to be replaced is %+v", i[0])
	}
}

// TestPoisoned: after an fsync that failed nothing is promised any more, but what
// is held can be read.
func TestPoisoned(t *testing.T) {
	fs := crashfs.New(1)
	s := onFS(t, fs)
	mustPut(t, s, simple("a", 1))
	fs.Inject(func(op crashfs.Op) error {
		if op.Kind == "sync" {
			return syscall.EIO
		}
		return nil
	})
	unavailable := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, job.ErrUnavailable) || !strings.Contains(err.Error(), "/store") || !strings.Contains(err.Error(), "restart") {
			t.Errorf("%s: %v, want ErrUnavailable that names the directory and a restart", what, err)
		}
	}
	for range 2 { // when it happens, and afterwards
		_, err := s.Put(ctx, []job.Job{simple("b", 1)})
		unavailable("Put", err)
		_, err = s.Claim(ctx, job.ClaimRequest{Now: 1, Until: 1, Max: 1})
		unavailable("Claim", err)
		_, err = s.Cancel(ctx, 1, job.ByIDs("unknown"))
		unavailable("Cancel", err)
		fs.Inject(nil)
	}
	if i, err := s.Get(ctx, []string{"a"}); err != nil || i[0].State != job.Pending {
		t.Errorf("Get: %+v, %v", i, err)
	}
	if p, err := s.List(ctx, job.Query{Limit: 10}); err != nil || len(p.Jobs) == 0 {
		t.Errorf("List: %+v, %v", p, err)
	}
	s.Close() // fails: it could not be written
	s = onFS(t, fs.Restart())
	defer s.Close()
	if got := states(t, s, "a"); got != "a pending 0; " {
		t.Errorf("after a restart: %s", got)
	}
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, memdelay.Options{})
	if _, err := memdelay.Open(dir, memdelay.Options{}); !errors.Is(err, wal.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Open of a directory in use: %v", err)
	}
}

// TestIncarnationsRise: what is minted after a restart is later than what was
// there, though the clock was ahead then.
func TestIncarnationsRise(t *testing.T) {
	dir := t.TempDir()
	s, err := memdelay.Open(dir, memdelay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	j := simple("a", 1)
	j.Incarnation = uint64(time.Now().Add(time.Hour).UnixNano())
	mustPut(t, s, j)
	must(s.Cancel(ctx, 1, job.ByIDs("a")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, memdelay.Options{})
	if got := job.NextIncarnation(); got <= j.Incarnation {
		t.Errorf("incarnation %d minted after %d", got, j.Incarnation)
	}
}

// TestOpenMany opens many jobs from the log alone and from a snapshot. A million
// of them, with DELAYBRIDGE_SOAK, take five seconds at most; the short form, which runs
// beside other tests and under the race detector, finds what takes minutes.
func TestOpenMany(t *testing.T) {
	n, limit := 100_000, 20*time.Second
	if os.Getenv("DELAYBRIDGE_SOAK") != "" {
		n, limit = 1_000_000, 5*time.Second
	}
	for name, o := range map[string]memdelay.Options{"log": {SnapshotBytes: 1 << 40}, "snapshot": {SnapshotBytes: 1 << 20}} {
		dir := t.TempDir()
		s, err := memdelay.Open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, n)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		s = open(t, dir, o)
		took := time.Since(start)
		t.Logf("%s: %d jobs opened in %v", name, n, took)
		if u := s.Usage(); u.Jobs != n || took > limit {
			t.Errorf("%s: %d jobs opened in %v, want %d in less than %v", name, u.Jobs, took, n, limit)
		}
	}
}
