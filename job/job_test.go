package job

import (
	"testing"
	"time"
)

func TestTimeRoundsUp(t *testing.T) {
	base := time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		ns   int
		want int64
	}{{0, 0}, {1, 1}, {999, 1}, {1000, 1}, {1001, 2}, {999_999_999, 1_000_000}} {
		at := base.Add(time.Duration(c.ns))
		got := At(at)
		if want := Time(base.UnixMicro() + c.want); got != want {
			t.Errorf("At(%v) = %d, want %d", at, got, want)
		}
		if got.Time().Before(at) {
			t.Errorf("At(%v) is earlier: %v", at, got.Time())
		}
		if got := At(base).Add(time.Duration(c.ns)); got != At(at) {
			t.Errorf("Add(%dns) = %d, want %d", c.ns, got, At(at))
		}
		if got := At(base).Add(time.Duration(c.ns)).Sub(At(base)); got != time.Duration(c.want)*time.Microsecond {
			t.Errorf("Sub after Add(%dns) = %v", c.ns, got)
		}
	}
	// Before the epoch, and backwards.
	if got := At(time.Unix(0, -1)); got != 0 {
		t.Errorf("At of a nanosecond before the epoch = %d, want 0", got)
	}
	if got := Time(10).Add(-1500 * time.Nanosecond); got != 9 {
		t.Errorf("Add(-1500ns) = %d, want 9", got)
	}
}

func TestLastAttempt(t *testing.T) {
	for _, c := range []struct {
		limit, attempt, base uint32
		want                 bool
	}{{0, 1000, 0, false}, {1, 1, 0, true}, {3, 2, 0, false}, {3, 3, 0, true}, {3, 4, 0, true}, {3, 4, 3, false}, {3, 6, 3, true}} {
		d := Delivery{Job: Job{MaxAttempts: c.limit}, Attempt: c.attempt, Base: c.base}
		if got := d.LastAttempt(); got != c.want {
			t.Errorf("attempt %d after %d of %d: last %v, want %v", c.attempt, c.base, c.limit, got, c.want)
		}
	}
}

func TestRefs(t *testing.T) {
	want := Ref{ID: "a", Shard: 3, Generated: true, Incarnation: 4, Attempt: 5, Nonce: 6}
	j := Job{ID: "a", Generated: true, Incarnation: 4}
	d := Delivery{Job: j, Shard: 3, Attempt: 5, Nonce: 6}
	i := Info{Job: j, Shard: 3, Attempt: 5, Nonce: 6}
	if d.Ref() != want || i.Ref() != want {
		t.Errorf("refs %+v, %+v, want %+v", d.Ref(), i.Ref(), want)
	}
}

func TestRefIs(t *testing.T) {
	r := Ref{ID: "a", Shard: 3, Generated: true, Incarnation: 1, Attempt: 2, Nonce: 3}
	o := r
	if o.Shard = 0; !r.Is(o) {
		t.Error("another delivery because another store keeps it")
	}
	for name, change := range map[string]func(*Ref){
		"id": func(r *Ref) { r.ID = "b" }, "incarnation": func(r *Ref) { r.Incarnation++ },
		"attempt": func(r *Ref) { r.Attempt++ }, "nonce": func(r *Ref) { r.Nonce++ },
	} {
		if o := r; func() bool { change(&o); return r.Is(o) }() {
			t.Errorf("the same delivery with another %s", name)
		}
	}
}
