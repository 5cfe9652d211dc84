package fleet

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// fleetOf begins the fleet of a configuration. was may be nil.
func fleetOf(t *testing.T, cfg config.Config, parts Parts, was *Fleet) *Fleet {
	t.Helper()
	if was == nil {
		was = new(Fleet)
	}
	if parts.Planner == nil {
		parts.Planner, _ = policies.New(policies.Config{Default: policies.Choosing{Policy: "roles"}})
	}
	if parts.Log == nil {
		parts.Log = slog.New(slog.DiscardHandler)
	}
	parts.Control = http.DefaultClient
	cfg = cfg.WithDefaults()
	f, err := New(cfg, parts, was, config.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	f.Begin(cfg, was)
	return f
}

// ofEngines is a configuration of one model with these engines.
func ofEngines(names ...string) config.Config {
	m := config.Model{Name: "m"}
	for _, name := range names {
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: "http://127.0.0.1:1/" + name})
	}
	return config.Config{Models: []config.Model{m}}
}

// engineRecords are the records of engines.
type engineRecords map[string][]metadata.Record

func (p engineRecords) Engine(name string) ([]metadata.Record, bool) {
	return p[name], len(p[name]) > 0
}

func (p engineRecords) publish(name string, role metadata.Role, digest string) {
	p[name] = []metadata.Record{{Incarnation: metadata.Incarnation{Engine: name, Generation: 1}, Role: role, Size: metadata.Rank{TP: 1, PP: 1, DP: 1}, Connector: connector.NameKVPlane, Compatibility: digest}}
}

// TestCompatibilityIsKept: two engines are compared once, and again as soon as one publishes other content, be it of the same run. What is
// wrong is said once, however often it is renewed.
func TestCompatibilityIsKept(t *testing.T) {
	records := engineRecords{}
	records.publish("p", metadata.Prefill, "same")
	records.publish("d", metadata.Decode, "same")
	var log strings.Builder
	f := fleetOf(t, config.Config{Models: []config.Model{{Name: "m", Connector: connector.NameKVPlane, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1"}}}}},
		Parts{Records: records, Log: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	c := f.Pairs[0]
	for _, row := range []struct {
		digest string
		fits   bool
	}{{"same", true}, {"other", false}, {"other", false}, {"same", true}} {
		records.publish("d", metadata.Decode, row.digest)
		if err := f.Compatible(c); (err == nil) != row.fits {
			t.Errorf("digest %q: %v", row.digest, err)
		}
		if n := testing.AllocsPerRun(100, func() { _ = f.Compatible(c) }); n != 0 {
			t.Errorf("digest %q: %v allocations where nothing has changed", row.digest, n)
		}
	}
	if n := strings.Count(log.String(), "engines cannot be paired"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

// TestEnginesThatLeaveAreForgotten: an engine that leaves the configuration has no place in the index, not even for a request that was
// admitted before.
func TestEnginesThatLeaveAreForgotten(t *testing.T) {
	by := policies.Role{Policy: "prefix"}
	planner, err := policies.New(policies.Config{Default: policies.Choosing{Policy: "roles", Prefill: by, Decode: by}})
	if err != nil {
		t.Fatal(err)
	}
	f := fleetOf(t, ofEngines("a", "b"), Parts{Planner: planner}, nil)
	x, a := f.Prefixes, f.Engine("a")
	h := a.takeSlot(x)
	x.Note(&prefixes.Prompt{Links: []uint64{1, 2}}, h.holder)
	f = fleetOf(t, ofEngines("b"), Parts{Planner: planner}, f)
	if f.Prefixes != x {
		t.Error("another index: what all others have is forgotten")
	}
	if got := x.Find([]uint64{1, 2}, nil)[h.holder]; got != 0 {
		t.Errorf("it has %d pieces", got)
	}
	if a.takeSlot(x) != nil {
		t.Error("it gets another place")
	}
	b := f.Engine("b")
	b.takeSlot(x)
	smaller := ofEngines("b")
	smaller.Limits.PrefixIndexEntries = 10
	f = fleetOf(t, smaller, Parts{Planner: planner}, f)
	before := &Selection{f: f, m: f.Models["m"], prompt: &prompt{index: x, bytes: 1}} // of a request that was admitted before
	if before.NotePrompt(policies.Choice{}); b.slot.Load() != nil {
		t.Error("an engine has a place in an index that nobody looks at")
	}
	if got := f.Prefixes.Bound(); got != 10 {
		t.Errorf("an index of %d; want 10", got)
	}
	f = fleetOf(t, ofEngines("b"), Parts{}, f)
	if f.Prefixes != nil || f.Models["m"].usesPrefixes != [roleCount]bool{} {
		t.Error("there is an index that no policy looks at")
	}
}

// TestJudgeHoldsOneLock judges engines as the requests before and after a reload do that names them in another order.
func TestJudgeHoldsOneLock(t *testing.T) {
	one := fleetOf(t, ofEngines("a", "b", "c"), Parts{}, nil)
	before := one.Models["m"].Decode
	two := fleetOf(t, ofEngines("c", "b", "a"), Parts{}, one)
	after := two.Models["m"].Decode
	if before[0] != after[2] {
		t.Fatal("the engines are others")
	}
	var wg sync.WaitGroup
	for _, engines := range [][]*Engine{before, after} {
		wg.Go(func() {
			for range 20_000 {
				two.ejectSlowest(engines, time.Now())
			}
		})
	}
	wg.Wait()
}
