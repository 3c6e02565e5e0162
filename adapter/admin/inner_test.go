package admin

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/delaybridge/delaybridge/api"
	"github.com/delaybridge/delaybridge/internal/testnats"
	"github.com/delaybridge/delaybridge/job"
)

// TestSemver: every version is one that micro services take.
func TestSemver(t *testing.T) {
	srv := testnats.Start(t)
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for in, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "v0.0.0-20261130101112-abcdef+dirty": "0.0.0-20261130101112-abcdef+dirty",
		"(devel)": "0.0.0+devel", "unknown": "0.0.0+unknown", "": "0.0.0", "1.2": "0.0.0+1-2", "v1.2.3-01": "0.0.0+1-2-3-01", "...": "0.0.0",
	} {
		if got := semver(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		s, err := micro.AddService(nc, micro.Config{Name: "x", Version: semver(in)})
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestSumUp: no index is gone over less far than it has said.
func TestSumUp(t *testing.T) {
	early, late := job.Cursor(1, "b"), job.Cursor(2, "a")
	for _, c := range []struct {
		parts []api.Purged
		want  api.Purged
	}{
		{nil, api.Purged{}},
		{[]api.Purged{{Purged: 1}, {Purged: 2}}, api.Purged{Purged: 3}},
		{[]api.Purged{{Purged: 1, Cursor: late}, {Purged: 2}}, api.Purged{Purged: 3, Cursor: late}},
		{[]api.Purged{{Cursor: late}, {Cursor: early}, {Purged: 1}}, api.Purged{Purged: 1, Cursor: early}},
		{[]api.Purged{{Cursor: early}, {Cursor: late}}, api.Purged{Cursor: early}},
	} {
		if got := sumUp(c.parts); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.parts, got, c.want)
		}
	}
}
