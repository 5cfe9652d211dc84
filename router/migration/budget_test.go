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

// fleetABC is of the engines a, b and c of model m, whose moves are bounded by the bytes of pairs alone.
func fleetABC(t *testing.T, planner fleet.Planner, records fleet.Records) (config.Config, *fleet.Fleet) {
	t.Helper()
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: "vllm-nixl-pull"}}}
	for _, name := range []string{"a", "b", "c"} {
		cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: name, URL: "http://127.0.0.1:1/" + name})
	}
	cfg.Migration.Mode, cfg.Migration.PerEngine, cfg.Migration.TokensPerSecond = config.MigrationEnabled, 8, 1<<40
	cfg = cfg.WithDefaults()
	f, err := fleet.New(cfg, fleet.Parts{Planner: planner, Records: records, Log: slog.New(slog.DiscardHandler), Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	f.Begin(cfg, new(fleet.Fleet))
	for _, e := range f.Engines {
		e.Reached()
	}
	return cfg, f
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
			cfg, f := fleetABC(t, policies.Default(), row.records)
			p, now := NewPlans(), time.Now()
			p.known.setLimit(1 << 20)
			at := func(rate yamlfile.Size) *Snapshot {
				c := cfg
				c.Migration.BytesPerSecond = rate
				return &Snapshot{Config: &c, Fleet: f}
			}
			s, from := at(row.rate), f.Engines[0]
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

// TestDrainGoesOnToOthers: what an engine that drains is to send to one whose bytes are used up does not hold up what goes to others.
func TestDrainGoesOnToOthers(t *testing.T) {
	const perToken, perMove = 1 << 20, 32 // bytes, tokens
	policy, err := policies.Parse("session", []byte("default: {decode: session}\n"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, f := fleetABC(t, policy, fakeRecords(perToken))
	cfg.Migration.BytesPerSecond = perToken
	s, p, now, from := &Snapshot{Config: &cfg, Fleet: f}, NewPlans(), time.Now(), f.Engines[0]
	p.known.setLimit(1 << 20)
	homes, session := map[*fleet.Engine]int{}, uint64(0)
	for _, to := range []*fleet.Engine{f.Engines[1], f.Engines[1], f.Engines[1], f.Engines[2], f.Engines[2]} { // in this order
		c := &conversation{model: "m", ids: make([]uint32, perMove+1)}
		for c.session = session + 1; f.NextHome(c.asFleet(f.Models["m"], fleet.Decode, now), from) != to; c.session++ {
			if c.session > session+1000 {
				t.Fatalf("no session has its home at %s", to.Name)
			}
		}
		session = c.session
		homes[to]++
		c.key[0], c.at[fleet.Decode] = session, place{from, f.RunOf(from)}
		p.known.put("", c, nil)
		p.addLocked(lane{ForDrain, from, nil}, task{c: c, role: fleet.Decode, run: f.RunOf(from), tokens: perMove})
	}
	always := func() bool { return true }
	for moved, want := range []int{2, 2, 1} { // of the five
		due, again, more := p.Due(s, now, always)
		for _, w := range due {
			homes[w.To]--
		}
		if len(due) != want || more || moved < 2 && again != perMove*time.Second || len(due) == 2 && due[0].To == due[1].To {
			t.Fatalf("after %d times %d begin, the next is due after %v, more is %v; want %d, to different engines", moved, len(due), again, more, want)
		}
		now = now.Add(again)
	}
	if homes[f.Engines[1]] != 0 || homes[f.Engines[2]] != 0 {
		t.Errorf("%v are left", homes)
	}
}

// TestLongLaneStays: a move is taken out of a lane without copying those behind it. There may be very many.
func TestLongLaneStays(t *testing.T) {
	cfg, f := fleetABC(t, policies.Default(), fakeRecords(0))
	s, p, now, l := &Snapshot{Config: &cfg, Fleet: f}, NewPlans(), time.Now(), lane{ForDrain, f.Engines[0], f.Engines[1]}
	p.known.setLimit(1 << 20)
	for i := range 3 * mostAtOnce {
		c := &conversation{model: "m", ids: make([]uint32, 33)}
		c.key[0], c.at[fleet.Decode] = uint64(i+1), place{l.from, f.RunOf(l.from)}
		if i != 1 { // the second one is dropped
			p.known.put("", c, nil)
		}
		p.addLocked(l, task{c: c, role: fleet.Decode, run: f.RunOf(l.from), tokens: 32})
	}
	q := p.lanes[l]
	last := &q.waiting[len(q.waiting)-1]
	due, _, more := p.Due(s, now, func() bool { return true })
	if len(due) != mostAtOnce-1 || !more || len(q.waiting) != 2*mostAtOnce {
		t.Fatalf("%d begin, more is %v, %d wait; want %d, true, %d", len(due), more, len(q.waiting), mostAtOnce-1, 2*mostAtOnce)
	}
	if &q.waiting[len(q.waiting)-1] != last {
		t.Error("the moves behind were moved in memory")
	}
}
