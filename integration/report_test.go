package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// row is a line of a soak's table.
type row struct{ name, value string }

func rowf(name, format string, args ...any) row { return row{name, fmt.Sprintf(format, args...)} }

// table prints what was counted and measured.
func (s *stand) table(title string, took time.Duration, more []row) {
	s.t.Helper()
	c, broken := s.Counts(), s.Broken(Explained)
	rows := []row{
		rowf("jobs sent", "%d", c.Sent),
		rowf("acknowledged", "%d (%d of them from the local store)", c.Accepted, c.Local),
		rowf("answered with an error, unanswered", "%d, %d", c.Refused, c.Unanswered),
		rowf("delivered", "%d, in %d deliveries; %d completions confirmed", c.Delivered, c.Deliveries, c.Confirmed),
		rowf("lost (G1)", "%d", broken["G1"]),
		rowf("phantom or altered (G2)", "%d", broken["G2"]),
		rowf("early (G3)", "%d", broken["G3"]),
		rowf("duplicates without a cause (G4)", "%d", broken["G4"]),
		rowf("delivered after confirmed completion (G6)", "%d", broken["G6"]),
	}
	duplicates := s.Duplicates()
	for _, cause := range Causes {
		rows = append(rows, rowf("delivered again: "+cause.String(), "%d", duplicates[cause]))
	}
	rows = append(rows, more...)
	rows = append(rows, s.waitRows()...)
	rows = append(rows,
		rowf("lateness, all jobs", "%v", s.Lateness(s.target, 0, never)),
		rowf("duration, seed", "%v, %d", took.Round(time.Second), s.seed))
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", title)
	for _, r := range rows {
		fmt.Fprintf(&b, "%-42s %s\n", r.name, r.value)
	}
	fmt.Print("\n", b.String(), "\n")
}

// waitRows are about how long producers waited.
func (s *stand) waitRows() []row {
	bounds := []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 260 * time.Millisecond, answerWithin}
	w := s.Waits()
	rows := []row{
		rowf("worst acknowledgement", "%v (the machine stood still for %v)", w.Max.Round(time.Microsecond), s.pulse.standstill().Round(time.Microsecond)),
		rowf("acknowledgement", "%v", w),
	}
	counts := s.Histogram(bounds)
	for i, bound := range bounds {
		rows = append(rows, rowf(fmt.Sprintf("acknowledged within %v", bound), "%d", counts[i]))
	}
	return append(rows, rowf("acknowledged later", "%d", counts[len(bounds)]))
}

// faultRows are about the faults that were made.
func (s *stand) faultRows(made []*Span) (rows []row) {
	times, lasted := map[string]int{}, map[string]time.Duration{}
	var over, late []time.Duration
	outage := map[string]bool{}
	for _, f := range outages {
		outage[f.name] = true
	}
	for _, span := range made {
		times[span.Name]++
		lasted[span.Name] += span.To.Sub(span.From)
		if !outage[span.Name] {
			continue
		}
		if at := s.FirstLocal(span.From); at != 0 && at < span.To {
			over = append(over, at.Sub(span.From))
		}
		if l := s.Lateness(s.target, span.From.Add(noticeWithin), span.To); l.N > 0 {
			late = append(late, l.P99)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		rows = append(rows, rowf("fault "+name, "%d times, %v in all", times[name], lasted[name].Round(time.Millisecond)))
	}
	return append(rows,
		rowf("kills of the bridge", "%d", s.kills),
		rowf("from outage to first local acknowledgement", "%v", spread(over)),
		rowf("lateness without Redis, p99 per outage", "%v", spread(late)))
}

// meter hears what the bridge says of its migrations.
type meter struct {
	mu   sync.Mutex
	runs []migration
}

type migration struct {
	ID     string
	Jobs   int
	TookMS int `json:"took_ms"`
}

func (s *stand) startMeter() *meter {
	s.t.Helper()
	m := &meter{}
	if _, err := s.client().Subscribe("delay.event.migrated", func(msg *nats.Msg) {
		var one migration
		if json.Unmarshal(msg.Data, &one) != nil || one.ID != "" {
			return // it is about a single job
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.runs = append(m.runs, one)
	}); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// rows are about the migrations; small ones say little of the speed.
func (m *meter) rows() []row {
	m.mu.Lock()
	defer m.mu.Unlock()
	jobs, counted, ms := 0, 0, 0
	for _, r := range m.runs {
		jobs += r.Jobs
		if r.Jobs >= 1000 {
			counted, ms = counted+r.Jobs, ms+r.TookMS
		}
	}
	rows := []row{rowf("migrations to Redis", "%d, of %d jobs", len(m.runs), jobs)}
	if ms > 0 {
		rows = append(rows, rowf("migration rate, those of 1,000 or more", "%d jobs/s", counted*1000/ms))
	}
	return rows
}
