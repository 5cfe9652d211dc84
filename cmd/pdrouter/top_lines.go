package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// topLevel is how much a line matters.
type topLevel uint8

const (
	topNormal topLevel = iota
	topHead
	topWarn
	topBad
)

// topLine is one line of pdrouter top.
type topLine struct {
	level topLevel
	text  string
}

// lines are all lines of the view.
func (v topView) lines() []topLine {
	out := v.head()
	out = append(out, v.queues()...)
	out = append(out, v.engines()...)
	out = append(out, v.pairs()...)
	return append(out, v.requests()...)
}

func (v topView) head() []topLine {
	s := v.status
	level, state := topHead, "ready"
	switch {
	case s.Draining:
		level, state = topWarn, "draining"
	case !s.Ready:
		level, state = topBad, "not ready"
	}
	out := []topLine{{level, fmt.Sprintf("pdrouter %s  %s  up %s  %d requests under way  configuration of %s ago", printable(s.Version), state,
		age(s.Now.Sub(s.Started)), s.Requests, age(s.Now.Sub(s.Config.Applied)))}}
	for _, m := range s.Config.Mistakes {
		out = append(out, topLine{topBad, "configuration refused: " + printable(m)})
	}
	for _, p := range s.Problems {
		out = append(out, topLine{topBad, fmt.Sprintf("%s  %s  %s: %s  for %s  %s", p.Severity, p.Alert, printable(p.What), printable(p.Why), age(s.Now.Sub(p.Since)), printable(p.Runbook))})
	}
	if len(s.Problems) > 0 {
		out = append(out, topLine{topBad, printable(s.Clients.Says)})
	}
	return append(out, topLine{})
}

func (v topView) queues() []topLine {
	t := newTable("MODEL", "SERVED", "PLACES USED", "WAITING", "EMPTY IN")
	for _, q := range v.status.Queues {
		level, served, empty := topNormal, "yes", ""
		if !v.status.Models[q.Model] {
			level, served = topBad, "no"
		} else if q.Waiting > 0 {
			level, empty = topWarn, age(time.Duration(q.Drain*float64(time.Second)))
		}
		t.row(level, q.Model, served, fmt.Sprintf("%d/%d", q.InFlight, q.Places), fmt.Sprint(q.Waiting), empty)
	}
	return t.lines()
}

func (v topView) engines() []topLine {
	t := newTable("ENGINE", "ROLE", "STATE", "IN FLIGHT", "KV BLOCKS", "WHY")
	for _, e := range v.status.Engines {
		level := topWarn
		switch e.State {
		case "up":
			level = topNormal
		case "down", "open":
			level = topBad
		}
		var roles, kv []string
		for _, p := range e.Places {
			if !slices.Contains(roles, p.Role) {
				roles = append(roles, p.Role)
			}
		}
		for _, why := range slices.Sorted(maps.Keys(e.Leaked)) {
			kv = append(kv, fmt.Sprintf("%d leaked (%s)", e.Leaked[why], why))
		}
		if e.MaybeLeaked > 0 {
			kv = append(kv, fmt.Sprintf("%d may be leaked", e.MaybeLeaked))
		}
		if e.CachedBlocks != nil {
			kv = append(kv, fmt.Sprintf("%d cached", *e.CachedBlocks))
		}
		t.row(level, e.Name, strings.Join(roles, ", "), e.State, fmt.Sprint(e.InFlight), strings.Join(kv, ", "), e.Why)
	}
	return t.lines()
}

// pairs are those that are not ready.
func (v topView) pairs() []topLine {
	if v.status.PairsTotal == 0 {
		return nil
	}
	t := newTable(fmt.Sprintf("PAIRS READY %d/%d", v.status.PairsWarm, v.status.PairsTotal), "STATE", "WHY")
	for _, p := range v.status.Pairs {
		state := cmp.Or(p.Circuit, "cold")
		switch {
		case !p.Pairable:
			state = "unpairable"
		case p.Warm && p.Circuit == "":
			continue
		}
		t.row(topWarn, p.Prefill+" > "+p.Decode, state, strings.TrimPrefix(p.Reason+": "+p.Why, ": "))
	}
	return t.lines()
}

// requests are those under way, then the finished ones. The stages are those of /requests; the first token and the total count from the arrival.
func (v topView) requests() []topLine {
	t := newTable("REQUESTS AT", "STATUS", "QUEUE", "PREFILL", "FIRST TOKEN AFTER", "TOTAL", "MODEL", "REQUEST ID", "REASON")
	for _, r := range v.live {
		legs := strings.Trim(r.PrefillState+" > "+r.DecodeState, "> ")
		t.row(topHead, enginesOf(r.Prefill, r.Decode), "under way", "", "", "", age(v.status.Now.Sub(r.Arrived)), r.Model, r.RequestID, legs)
	}
	for i := range v.recent {
		r := &v.recent[i]
		level := topNormal
		switch r.Outcome {
		case dispatch.FailedBefore, dispatch.FailedAfter:
			level = topBad
		case dispatch.ClientLeft:
			level = topWarn
		}
		p, took := r.Phases, r.Phases.Stages()
		t.row(level, enginesOf(r.Prefill, r.Decode), fmt.Sprint(r.Status), spell(took[report.StageQueue]), spell(took[report.StagePrefill]), spell(p.FirstToken), spell(p.Total), r.Model, r.RequestID, reasonOf(r))
	}
	return t.lines()
}

// reasonOf is why a request was split or failed, with the last engine that failed it.
func reasonOf(r *report.Summary) string {
	if n := len(r.Failures); n > 0 {
		return fmt.Sprintf("%s (%s: %s)", r.Reason, r.Failures[n-1].Engine, r.Failures[n-1].Cause)
	}
	return r.Reason
}

func enginesOf(prefill, decode string) string {
	if prefill == "" || prefill == decode {
		return cmp.Or(decode, "-")
	}
	return prefill + " > " + cmp.Or(decode, "-")
}

// age is a time for people, in one unit.
func age(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", max(d, 0).Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// spell is the time of a stage; "" if it was not reached.
func spell(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", 1e3*d.Seconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return age(d)
}

// table aligns rows that have a level each.
type table struct {
	b      strings.Builder
	w      *tabwriter.Writer
	levels []topLevel
}

func newTable(heads ...string) *table {
	t := &table{}
	t.w = tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	t.row(topHead, heads...)
	return t
}

// row adds a row. What others chose cannot steer the terminal or break the table.
func (t *table) row(level topLevel, cells ...string) {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
	t.levels = append(t.levels, level)
}

// lines are the rows, and an empty line.
func (t *table) lines() []topLine {
	_ = t.w.Flush() // a strings.Builder does not fail
	var out []topLine
	for i, text := range strings.Split(strings.TrimSuffix(t.b.String(), "\n"), "\n") {
		out = append(out, topLine{t.levels[i], text})
	}
	return append(out, topLine{})
}
