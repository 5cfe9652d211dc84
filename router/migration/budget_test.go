package migration

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/yamlfile"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// fakeRecords say of each engine that a token takes so many bytes there; 0: they say nothing.
type fakeRecords int

func (r fakeRecords) Engine(string) ([]metadata.Record, bool) {
	layout := metadata.Layout{BlockTokens: 16, Regions: []metadata.Region{{Length: 64 * 16 * uint64(r), Blocks: 64}}}
	return []metadata.Record{{Layout: layout}}, r > 0
}

// TestBytesOfPair: a second move from one engine to another waits until the bytes of the first are paid for. Moves to other engines do not, nor do any
// where bytes are not known or not bounded. Requests are offered no move that would wait.
func TestBytesOfPair(t *testing.T) {
	const perToken, perMove = 1 << 20, 32 // bytes, tokens
	for _, row := range []struct {
		name    string
		records fakeRecords
		rate    yamlfile.Size
		waits   time.Duration // 0: all three begin
	}{
		{"bounded", perToken, perToken, perMove * time.Second},
		{"half the rate", perToken, perToken / 2, 2 * perMove * time.Second},
		{"at most an hour at once", perToken, 1, time.Hour},
		{"not bounded", perToken, 0, 0},
		{"not known", 0, perToken, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			cfg := config.Config{Models: []config.Model{{Name: "m", Connector: "vllm-nixl-pull"}}}
			for _, name := range []string{"a", "b", "c"} {
				cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: name, URL: "http://127.0.0.1:1/" + name})
			}
			cfg.Migration.Mode, cfg.Migration.PerEngine, cfg.Migration.TokensPerSecond = config.MigrationEnabled, 8, 1<<40
			cfg = cfg.WithDefaults()
			f, err := fleet.New(cfg, fleet.Parts{Planner: policies.Default(), Records: row.records, Log: slog.New(slog.DiscardHandler), Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			f.Begin(cfg, new(fleet.Fleet))
			p, now := NewPlans(), time.Now()
			p.known.setLimit(1 << 20)
			at := func(rate yamlfile.Size) *Snapshot {
				c := cfg
				c.Migration.BytesPerSecond = rate
				return &Snapshot{Config: &c, Fleet: f}
			}
			s, from := at(row.rate), f.Engines[0]
			for _, e := range f.Engines {
				e.Reached()
			}
			for i, to := range []int{1, 1, 2} {
				c := &conversation{model: "m", ids: make([]uint32, perMove+1)}
				c.key[0], c.at[fleet.Decode] = uint64(i+1), place{from, f.RunOf(from)}
				p.known.put("", c, nil)
				p.addLocked(lane{ForDrain, from, f.Engines[to]}, task{c: c, role: fleet.Decode, run: f.RunOf(from), tokens: perMove})
			}
			offered := func() (offered [3]bool) {
				differs := 0.0
				for i, seconds := range p.secondsLocked(&Offer{s: s, model: f.Models["m"]}, from, f.Engines, perMove, now, &differs) {
					offered[i] = seconds > 0
				}
				return offered
			}
			always := func() bool { return true }
			if got := offered(); got != [3]bool{false, true, true} {
				t.Errorf("at first moves are offered %v", got)
			}
			due, again, _ := p.Due(s, now, always)
			if row.waits == 0 {
				if len(due) != 3 || len(p.pairs) > 0 || offered() != [3]bool{false, true, true} {
					t.Errorf("%d begin, %d pairs are kept, moves are offered %v; want 3, none, both", len(due), len(p.pairs), offered())
				}
				return
			}
			if len(due) != 2 || due[0].To == due[1].To || again != row.waits || offered() != [3]bool{} {
				t.Fatalf("%d begin, the next is due after %v, moves are offered %v; want 2, %v, none", len(due), again, offered(), row.waits)
			}
			if row.waits == time.Hour { // a reload with another rate counts at once
				if due, _, _ := p.Due(at(0), now, always); len(due) != 1 {
					t.Errorf("%d begin after the reload; want 1", len(due))
				}
				return
			}
			if now = now.Add(row.waits - time.Second); offered() != [3]bool{} {
				t.Error("a move is offered too early")
			}
			if due, again, _ = p.Due(s, now, always); len(due) != 0 || again != time.Second {
				t.Errorf("%d begin, the next is due after %v; want none, 1s", len(due), again)
			}
			now = now.Add(time.Second)
			if due, _, _ = p.Due(s, now, always); len(due) != 1 || len(p.pairs) != 1 {
				t.Errorf("%d begin, %d pairs are kept; want 1 and 1: the other is paid for", len(due), len(p.pairs))
			}
		})
	}
}
