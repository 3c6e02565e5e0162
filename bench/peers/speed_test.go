package main

import (
	"fmt"
	"strings"
	"testing"
)

func result(run string, rep int, scenario, system string, conc int, metrics ...any) Result {
	r := Result{Run: run, Rep: rep, Scenario: scenario, System: system, Conc: conc, M: map[string]float64{}}
	for i := 0; i < len(metrics); i += 2 {
		r.M[metrics[i].(string)] = metrics[i+1].(float64)
	}
	return r
}

func TestRatiosAreTakenWithinARepetitionOfARun(t *testing.T) {
	ratio := target{scenario: "A", conc: 64, system: waiting, over: natsSync, metric: "jobs_s", least: true, limit: 0.8}
	m := ratio.measure([]Result{
		result("r1", 1, "A", natsSync, 64, "jobs_s", 100.0, "noise", 0.5),
		result("r1", 1, "A", natsSync, 8, "jobs_s", 1.0),
		result("r1", 1, "A", waiting, 64, "jobs_s", 90.0, "noise", 0.1),
		result("r1", 2, "A", natsSync, 64, "jobs_s", 200.0),
		result("r1", 2, "A", waiting, 64, "jobs_s", 100.0),
		result("r2", 1, "A", waiting, 64, "jobs_s", 7.0), // nothing to compare with
		result("r1", 1, "B", waiting, 64, "jobs_s", 8.0),
	})
	if got, want := fmt.Sprint(m.values), "[0.9 0.5]"; got != want {
		t.Errorf("ratios %s, want %s", got, want)
	}
	if m.noise != 0.5 {
		t.Errorf("noise %v, want 0.5, the peer's", m.noise)
	}
}

func TestTargetsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name   string
		target target
		values []float64 // from best to worst
		want   bool
	}{
		{"median at least", target{least: true, limit: 2}, []float64{3, 2, 1}, true},
		{"median below", target{least: true, limit: 2.5}, []float64{3, 2, 1}, false},
		{"the worse of two middle ones", target{least: true, limit: 2}, []float64{3, 1}, false},
		{"median at most", target{limit: 2}, []float64{1, 2, 9}, true},
		{"median above", target{limit: 1}, []float64{1, 2, 9}, false},
		{"worst above", target{limit: 2, worst: true}, []float64{1, 2, 9}, false},
		{"worst at most", target{limit: 9, worst: true}, []float64{1, 2, 9}, true},
		{"none wanted, none there", target{worst: true}, []float64{0, 0}, true},
		{"not measured", target{limit: 2}, nil, false},
	} {
		if got := c.target.met(measured{values: c.values}); got != c.want {
			t.Errorf("%s: met %v, want %v", c.name, got, c.want)
		}
	}
}

func TestBurstsThatOverlapTheirEnqueuingAreLeftOut(t *testing.T) {
	rate := target{scenario: "B", system: pipelined, over: natsAsync, metric: "burst_jobs_s", least: true, limit: 1}
	m := rate.measure([]Result{
		result("r", 1, "B", natsAsync, 64, "burst_jobs_s", 10.0, "slack_s", -0.1),
		result("r", 1, "B", pipelined, 64, "burst_jobs_s", 30.0, "slack_s", 3.0),
		result("r", 2, "B", natsAsync, 64, "burst_jobs_s", 20.0, "slack_s", 0.1),
		result("r", 2, "B", pipelined, 64, "burst_jobs_s", 40.0, "slack_s", 3.0),
		result("r", 3, "B", natsAsync, 64, "burst_jobs_s", 10.0, "slack_s", 3.0),
		result("r", 3, "B", pipelined, 64, "burst_jobs_s", 50.0, "slack_s", -3.0),
	})
	if got, want := fmt.Sprint(m.values), "[2]"; got != want {
		t.Errorf("ratios %s, want %s: only the second repetition's", got, want)
	}
}

func TestTheSpeedTableCountsWhatIsMissed(t *testing.T) {
	var b strings.Builder
	missed := printSpeed(&b, []Result{
		result("r", 1, "C", pipelined, 8, "late_p50_ms", 0.2, "late_p99_ms", 4.0, "noise", 0.5, "early", 0.0, "lost", 0.0, "dup", 0.0),
	})
	if want := len(targets) - 4; missed != want {
		t.Errorf("%d missed, want %d: all but four of scenario C\n%s", missed, want, b.String())
	}
	for _, want := range []string{
		"| 1,000/s at random times, lateness p50, ms | ≤ 0.50 | 0.20 (0.20–0.20) | 1 | 0.50 | pass, noisy |",
		"| 1,000/s at random times, lateness p99, ms | ≤ 3 | 4 (4–4) | 1 | 0.50 | FALLS SHORT, noisy |",
		"| not measured |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestTargetsNameSystemsThatExist(t *testing.T) {
	for _, c := range targets {
		for _, spec := range []string{c.system, c.over} {
			if spec == "" {
				continue
			}
			if _, err := newSystem(spec); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
	}
}
