package gateway

import (
	"strings"
	"testing"
	"time"

	"pdrouter/internal/dashboards"
	"pdrouter/router"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
)

// TestProblems: each thing that is wrong is named with its reason and with an alert of the runbook, and nothing is wrong in a sound fleet.
func TestProblems(t *testing.T) {
	severity := map[string]string{}
	for _, a := range dashboards.Alerts() {
		severity[a.Name] = a.Severity
	}
	sound := router.Stats{Models: map[string]bool{"m": true}, PairsTotal: 2, PairsWarm: 1, Engines: []router.EngineStats{
		{Name: "d", State: "up", HandOffs: &handoff.EngineStats{}}, {Name: "p", State: "draining", Why: "an administrator"},
	}}
	if got := problemsOf(sound, ConfigStatus{}, exchanges{}); len(got) != 0 {
		t.Errorf("a sound fleet has %+v", got)
	}
	engine := func(e router.EngineStats) router.Stats { return router.Stats{Engines: []router.EngineStats{e}} }
	recomputing := &handoff.EngineStats{Recomputing: true}
	recomputing.Prompts[handoff.ByCount] = 7
	for name, row := range map[string]struct {
		s           router.Stats
		config      ConfigStatus
		redis       exchanges
		alert, what string
		why         string
	}{
		"a file with a mistake": {router.Stats{}, ConfigStatus{Mistakes: []string{"c.yaml:3: wrong"}}, exchanges{}, "PdrouterConfigRefused", "configuration", "c.yaml:3: wrong"},
		"no metadata":           {router.Stats{}, ConfigStatus{}, exchanges{at: "r:1", metadata: true, peers: true}, "PdrouterMetadataBehind", "Redis", "the load of other gateways is not known"},
		"no peers":              {router.Stats{}, ConfigStatus{}, exchanges{at: "r:1", peers: true}, "PdrouterMetadataBehind", "Redis", "with Redis at r:1: the load of other gateways"},
		"no limits":             {router.Stats{}, ConfigStatus{}, exchanges{at: "r:1", limits: true}, "PdrouterLimitsAlone", "Redis", "counted by each gateway alone"},
		"no engine for a model": {router.Stats{Models: map[string]bool{"m": false}}, ConfigStatus{}, exchanges{}, "PdrouterErrors", "m", "no engine takes its requests"},
		"panic mode":            {router.Stats{PanicModes: []fleet.PanicMode{{Model: "m", Role: "decode"}}}, ConfigStatus{}, exchanges{}, "PdrouterPanicMode", "decode engines of m", "used again"},
		"an engine is down":     {engine(router.EngineStats{Name: "d", State: "down", Why: "refused"}), ConfigStatus{}, exchanges{}, "PdrouterEngineOut", "d", "it is down: refused"},
		"an engine recomputes":  {engine(router.EngineStats{Name: "d", State: "up", HandOffs: recomputing}), ConfigStatus{}, exchanges{}, "PdrouterRecomputing", "d", "few cached tokens of 7 prompts"},
		"KV leaks":              {engine(router.EngineStats{Name: "p", State: "up", Leaked: map[string]int{"lease": 5}}), ConfigStatus{}, exchanges{}, "PdrouterKVLeaks", "p", "5 KV blocks"},
		"no pair":               {router.Stats{PairsTotal: 4}, ConfigStatus{}, exchanges{}, "PdrouterNoPair", "pairs", "none of 4"},
		"a slow pair":           {router.Stats{SlowPairs: []handoff.PairStats{{Prefill: "p", Decode: "d", Seconds: .3, Times: 6}}}, ConfigStatus{}, exchanges{}, "PdrouterPairSlow", "p → d", "300 ms in the mean of the last 30 s, 6.0 times the usual 50.0 ms"},
		"a stale source":        {router.Stats{Sources: []router.StaleSource{{Model: "m", List: "prefill", Source: "file x", Why: "gone"}}}, ConfigStatus{}, exchanges{}, "PdrouterSourceStale", "m prefill", "file x: gone"},
	} {
		got := problemsOf(row.s, row.config, row.redis)
		if len(got) != 1 || got[0].Alert != row.alert || got[0].What != row.what || !strings.Contains(got[0].Why, row.why) || got[0].Severity != severity[row.alert] ||
			got[0].Runbook != "docs/runbook.md#"+strings.ToLower(row.alert) {
			t.Errorf("%s: %+v; want %s of %s, %q, and severity %q of an alert that exists", name, got, row.alert, row.what, row.why, severity[row.alert])
		}
	}
}

// TestBeginnings: a problem says since when it is there, also if its reason changes, and begins anew after it was away.
func TestBeginnings(t *testing.T) {
	var b beginnings
	at := time.Unix(1000, 0)
	since := func(now time.Time, why string) time.Duration {
		all := []Problem{newProblem("PdrouterEngineOut", "d", why)}
		b.note(now, all)
		return now.Sub(all[0].Since)
	}
	if got := since(at, "down"); got != 0 {
		t.Errorf("it is there for %v at first", got)
	}
	if got := since(at.Add(time.Minute), "open"); got != time.Minute {
		t.Errorf("after a minute it is there for %v", got)
	}
	b.note(at.Add(2*time.Minute), nil)
	if got := since(at.Add(3*time.Minute), "down"); got != 0 {
		t.Errorf("a new one is there for %v", got)
	}
}
