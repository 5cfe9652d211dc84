package migration

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// TestLanesThatWaitAreLookedAtOnce: however many lanes have to wait, those behind them begin, and there is an end to asking what is due.
func TestLanesThatWaitAreLookedAtOnce(t *testing.T) {
	const n = 2*mostAtOnce + 2
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: "vllm-nixl-pull"}}, Migration: config.Migration{Mode: config.MigrationEnabled}}
	for i := range n {
		cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: fmt.Sprintf("%02d", i), URL: fmt.Sprintf("http://127.0.0.1:1/%d", i)})
	}
	cfg = cfg.WithDefaults()
	f, err := fleet.New(cfg, fleet.Parts{Planner: policies.Default(), Log: slog.New(slog.DiscardHandler), Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Begin(cfg, new(fleet.Fleet))
	s, p, now := &Snapshot{Config: &cfg, Fleet: f}, NewPlans(), time.Now()
	p.known.setLimit(1 << 20)
	for i, e := range f.Engines {
		e.Reached()
		if i%2 == 1 { // the engines with odd numbers are given conversations by those before them
			from := f.Engines[i-1]
			c := &conversation{model: "m", ids: make([]uint32, 33)}
			c.key[0], c.at[fleet.Decode] = uint64(i), place{from, f.RunOf(from)}
			p.known.put("", c, nil)
			p.addLocked(lane{ForWarmth, from, e}, task{c: c, role: fleet.Decode, run: f.RunOf(from), tokens: 32})
			if i < n-1 {
				p.budgets.Of(from).tokens = debt{60 * float64(cfg.Migration.TokensPerSecond), now}
			}
		}
	}
	began := 0
	for range n {
		due, again, more := p.Due(s, now, func() bool { return true })
		if began += len(due); more {
			continue
		}
		if began != 1 || again != time.Minute {
			t.Errorf("%d have begun, the next is due after %v; want 1, a minute", began, again)
		}
		return
	}
	t.Error("there is always more")
}
