package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

var columns = map[string][]string{
	"A":      {"jobs_s", "ack_p50_ms", "ack_p99_ms", "done", "errs", "cpu_srv_100k", "cpu_cli_100k", "noise"},
	"B":      {"burst_jobs_s", "flow_jobs_s", "first_ms", "late_p50_ms", "late_p99_ms", "late_max_ms", "early", "lost", "dup", "cpu_enq_srv", "cpu_enq_cli", "cpu_due_srv", "cpu_due_cli", "cpu_100k", "slack_s", "noise"},
	"C":      {"jobs_s", "late_p50_ms", "late_p99_ms", "late_max_ms", "late_min_ms", "early", "lost", "dup", "ack_p50_ms", "ack_p99_ms", "cpu_srv", "cpu_cli", "noise"},
	"D-load": {"stored", "load_jobs_s", "rss_B_job", "used_B_job", "rss_MB"},
}

func init() {
	columns["D-A"], columns["D-C"], columns["M"] = columns["A"], columns["C"], columns["D-load"]
}

func num(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) || a >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// cell names what the repetitions of one measurement have in common.
type cell struct {
	scenario, system                 string
	payload, conc, n, batch, backlog int
}

func cellOf(r Result) cell {
	c := cell{r.Scenario, r.System, r.Payload, r.Conc, r.N, r.Batch, r.Backlog}
	if strings.HasPrefix(c.scenario, "raw") {
		c.n = 0 // what fitted into the time, different each time
	}
	return c
}

// printTables prints one table per scenario: median (min–max) over the
// repetitions.
func printTables(w io.Writer, all []Result) {
	groups := map[cell][]Result{}
	rows := map[string][]cell{} // by scenario, in order of appearance
	for _, r := range all {
		c := cellOf(r)
		if groups[c] == nil {
			rows[c.scenario] = append(rows[c.scenario], c)
		}
		groups[c] = append(groups[c], r)
	}
	for _, scenario := range slices.Sorted(maps.Keys(rows)) {
		cols := columns[scenario]
		if cols == nil {
			cols = metricsOf(all, scenario)
		}
		fmt.Fprintf(w, "\n### %s\n\n| system | payload | conc | n | batch | backlog | runs | %s |\n|---|%s\n", scenario,
			strings.Join(cols, " | "), strings.Repeat("---|", 6+len(cols)))
		for _, c := range rows[scenario] {
			printRow(w, c, cols, groups[c])
		}
	}
}

// metricsOf are the names of all metrics that a scenario's results have.
func metricsOf(all []Result, scenario string) []string {
	seen := map[string]bool{}
	for _, r := range all {
		if r.Scenario == scenario {
			for name := range r.M {
				seen[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func printRow(w io.Writer, c cell, cols []string, runs []Result) {
	fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d |", c.system, c.payload, c.conc, c.n, c.batch, c.backlog, len(runs))
	for _, col := range cols {
		var v []float64
		for _, r := range runs {
			if x, ok := r.M[col]; ok {
				v = append(v, x)
			}
		}
		fmt.Fprintf(w, " %s |", spread(v))
	}
	fmt.Fprintln(w)
}

// spread is median (min–max).
func spread(v []float64) string {
	slices.Sort(v)
	switch {
	case len(v) == 0:
		return ""
	case v[0] == v[len(v)-1]:
		return num(v[0])
	}
	return fmt.Sprintf("%s (%s–%s)", num(v[len(v)/2]), num(v[0]), num(v[len(v)-1]))
}
