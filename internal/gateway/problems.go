package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pdrouter/router"
	"pdrouter/router/handoff"
)

// Problem is something that is wrong now.
type Problem struct {
	Alert    string    `json:"alert"`
	Severity string    `json:"severity"` // of the alert: critical, if clients are harmed now, or warning
	What     string    `json:"what"`     // the engine, the pair, the model or the part of the gateway
	Why      string    `json:"why"`
	Since    time.Time `json:"since"`   // when it was noticed, to a few seconds
	Runbook  string    `json:"runbook"` // the section that says what to do, as the alert's runbook_url
}

// critical are the alerts of that severity.
var critical = map[string]bool{"PdrouterErrors": true, "PdrouterPanicMode": true, "PdrouterNoPair": true}

// newProblem leaves out since when.
func newProblem(alert, what, why string) Problem {
	p := Problem{Alert: alert, Severity: "warning", What: what, Why: why, Runbook: "docs/runbook.md#" + strings.ToLower(alert)}
	if critical[alert] {
		p.Severity = "critical"
	}
	return p
}

// beginnings knows since when problems are there. It is safe for concurrent use. The zero value knows none.
type beginnings struct {
	mu    sync.Mutex
	times map[[2]string]time.Time // by alert, and what it is about
}

// note has each problem say since when it is there, and forgets those that are not.
func (b *beginnings) note(now time.Time, all []Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	still := make(map[[2]string]time.Time, len(all))
	for i := range all {
		p := &all[i]
		key := [2]string{p.Alert, p.What}
		p.Since = now
		if before, ok := b.times[key]; ok {
			p.Since = before
		}
		still[key] = p.Since
	}
	b.times = still
}

// problemsEvery is how often it is looked what is wrong, whether somebody asks or not.
const problemsEvery = 5 * time.Second

// watchProblems keeps since when problems are there, until ctx ends.
func (g *Gateway) watchProblems(ctx context.Context) error {
	tick := time.NewTicker(problemsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			g.problems(g.router.Stats())
		}
	}
}

// problems are what is wrong now.
func (g *Gateway) problems(s router.Stats) []Problem {
	all := problemsOf(s, g.configStatus(), g.exchanges(s))
	g.began.note(time.Now(), all)
	return all
}

// exchanges are what a gateway exchanges with others through Redis; true where the latest exchange failed.
type exchanges struct {
	at                                 string // Redis's address
	metadata, limits, responses, peers bool
}

func (e exchanges) any() bool { return e.metadata || e.limits || e.responses || e.peers }

// problemsOf finds what is wrong, without since when.
func problemsOf(s router.Stats, config ConfigStatus, redis exchanges) []Problem {
	out := []Problem{}
	add := func(alert, what, why string, args ...any) {
		out = append(out, newProblem(alert, what, fmt.Sprintf(why, args...)))
	}
	if len(config.Mistakes) > 0 {
		add("PdrouterConfigRefused", "configuration", "the file was not taken into use: %s", config.Mistakes[0])
	}
	if redis.any() {
		alert := "PdrouterMetadataBehind" // also where another exchange has failed first
		if redis == (exchanges{at: redis.at, limits: true}) {
			alert = "PdrouterLimitsAlone"
		}
		add(alert, "Redis", "this gateway cannot exchange with Redis at %s: %s. Whether other gateways do is in their /status (redis.reached)", redis.at, redis.text())
	}
	for _, model := range slices.Sorted(maps.Keys(s.Models)) {
		if !s.Models[model] {
			add("PdrouterErrors", model, "no engine takes its requests: each is drained, down, not ready, or not there")
		}
	}
	for _, p := range s.PanicModes {
		add("PdrouterPanicMode", p.Role+" engines of "+p.Model, "so many are ejected that all are used again")
	}
	for _, e := range s.Engines {
		if e.State == "down" || e.State == "open" || e.State == "slow" {
			add("PdrouterEngineOut", e.Name, "it is %s: %s", e.State, e.Why)
		}
		if e.HandOffs != nil && e.HandOffs.Recomputing {
			add("PdrouterRecomputing", e.Name, "it computes prompts whose KV it should receive, so each is computed twice%s", seenBy(e.HandOffs))
		}
		leaked := 0
		for _, n := range e.Leaked {
			leaked += n
		}
		if leaked > 0 {
			add("PdrouterKVLeaks", e.Name, "%d KV blocks stay held for requests that have ended", leaked)
		}
	}
	if s.PairsTotal > 0 && s.PairsWarm == 0 {
		add("PdrouterNoPair", "pairs", "none of %d is ready", s.PairsTotal)
	}
	for _, p := range s.SlowPairs {
		add("PdrouterPairSlow", p.Prefill+" → "+p.Decode, "hand-offs take %.0f ms in the mean of the last 30 s, %.1f times the usual %.1f ms", 1e3*p.Seconds, p.Times, 1e3*p.Seconds/max(p.Times, 1e-9))
	}
	for _, src := range s.Sources {
		add("PdrouterSourceStale", src.Model+" "+src.List, "%s: %s", src.Source, src.Why)
	}
	return out
}

// seenBy says how it was seen that an engine computes prompts.
func seenBy(e *handoff.EngineStats) string {
	text := map[handoff.By]string{
		handoff.ByCount: "it counts few cached tokens of %d prompts", handoff.ByTransfer: "it answered %d prompts whose KV transfer had failed",
		handoff.ByTime: "the first tokens of %d prompts came as late as if it computed",
	}
	var all []string
	for by := range handoff.Signs {
		if n := e.Prompts[by]; n > 0 {
			all = append(all, fmt.Sprintf(text[by], n))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// text says what is not exchanged, and what that means.
func (e exchanges) text() string {
	var all []string
	for _, x := range []struct {
		is   bool
		says string
	}{
		{e.metadata, "records of engines are those of a while ago"}, {e.limits, "limits are counted by each gateway alone"},
		{e.responses, "other gateways do not learn which engine has a stored response"}, {e.peers, "the load of other gateways is not known"},
	} {
		if x.is {
			all = append(all, x.says)
		}
	}
	return strings.Join(all, "; ")
}
