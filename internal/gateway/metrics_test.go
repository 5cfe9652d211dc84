package gateway

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

func TestStagesLeaveOutWhatWasNotReached(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, tt := range []struct {
		name   string
		phases report.Phases
		want   []phase
	}{
		{"whole", report.Phases{Admit: ms(1), Plan: ms(2), Pair: ms(4), Prefill: ms(10), Transfer: ms(12), FirstToken: ms(15), Total: ms(40)},
			[]phase{{"admit", ms(1)}, {"plan", ms(1)}, {"pair", ms(2)}, {"prefill", ms(6)}, {"transfer", ms(2)}, {"first_token", ms(3)}, {"stream", ms(25)}}},
		{"decode alone", report.Phases{Admit: ms(1), Plan: ms(2), FirstToken: ms(5), Total: ms(9)},
			[]phase{{"admit", ms(1)}, {"plan", ms(1)}, {"first_token", ms(3)}, {"stream", ms(4)}}},
		{"transfer seen before prefill's answer", report.Phases{Admit: ms(1), Prefill: ms(10), Transfer: ms(8), FirstToken: ms(11), Total: ms(12)},
			[]phase{{"admit", ms(1)}, {"prefill", ms(9)}, {"transfer", 0}, {"first_token", ms(1)}, {"stream", ms(1)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(reached(tt.phases), tt.want, cmp.AllowUnexported(phase{})); d != "" {
				t.Errorf("got(-) want(+):\n%s", d)
			}
		})
	}
}

type phase struct {
	name string
	took time.Duration
}

// reached are the phases that were reached.
func reached(p report.Phases) (out []phase) {
	for i, took := range p.Stages() {
		if took >= 0 {
			out = append(out, phase{report.Stage(i).String(), took})
		}
	}
	return out
}

// TestBuildInfo: every gateway has one series that says which build it runs.
func TestBuildInfo(t *testing.T) {
	want := `pdrouter_build_info{commit="abcdef0",go_version="` + runtime.Version() + `",version="v9.8.7"} 1` + "\n"
	if got := exposed(t, newMetrics("v9.8.7", "abcdef0").registry); !strings.Contains(got, want) {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestMetricsCountWhatASummarySays(t *testing.T) {
	m := newMetrics("v1", "abcdef0")
	m.observe(report.Summary{Model: "m", Route: "/v1/completions", Status: 200, Outcome: dispatch.Completed, Reason: "split",
		Prefill: "p0", Decode: "d1", Attempts: 2, PromptTokens: 100, OutputTokens: 7})
	got := exposed(t, m.registry)
	for _, want := range []string{
		`pdrouter_requests_total{model="m",outcome="completed",route="/v1/completions",status="200"} 1`,
		`pdrouter_attempts_total{model="m"} 2`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	problems, err := testutil.GatherAndLint(allMetrics(t).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestMetricsOfPredictions: predictions are compared with counts apart by how they were made, and only where there are both.
func TestMetricsOfPredictions(t *testing.T) {
	m := newMetrics("v1", "abcdef0")
	for _, s := range []report.Summary{
		{CachedBy: report.CachedByEvents, PredictedCachedTokens: 30, CountedCachedTokens: 32},
		{CachedBy: report.CachedByEvents, PredictedCachedTokens: 10, CountedCachedTokens: 7},
		{CachedBy: report.CachedByEstimate, PredictedCachedTokens: 5, CountedCachedTokens: 0},
		{CachedBy: report.CachedByEvents, PredictedCachedTokens: 100, CountedCachedTokens: -1}, // the engine does not say
		{CountedCachedTokens: 100}, // the policy does not look at it
	} {
		s.Model = "m"
		m.observe(s)
	}
	got := exposed(t, m.registry)
	for _, want := range []string{
		`pdrouter_predicted_cached_tokens_total{by="events",model="m"} 40`, `pdrouter_predicted_cached_tokens_total{by="estimate",model="m"} 5`,
		`pdrouter_counted_cached_tokens_total{by="events",model="m"} 39`, `pdrouter_counted_cached_tokens_total{by="estimate",model="m"} 0`,
		`pdrouter_mispredicted_cached_tokens_total{by="events",model="m"} 5`, `pdrouter_mispredicted_cached_tokens_total{by="estimate",model="m"} 5`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
