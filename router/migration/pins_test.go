package migration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/reclaim"
)

// pinning is a ledger with two engines that pin, and what they have answered.
type pinning struct {
	t *testing.T
	s *Snapshot
	l pins
	r *reclaim.Reclaimer

	answers int
}

type noAgent struct{}

func (noAgent) Notify(context.Context, []metadata.Record, string, int) error { return nil }
func (noAgent) Forget(string)                                                {}

// newPinning has engines with room for so many pinned tokens.
func newPinning(t *testing.T, room int) *pinning {
	cfg := config.Config{
		Models:    []config.Model{{Name: "m", Connector: "vllm-nixl-pull"}},
		Migration: config.Migration{Mode: config.MigrationEnabled, MinTokens: 16, PinnedFor: time.Minute, PinnedShare: 0.5},
	}
	for i := range 2 {
		cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: fmt.Sprint("engine-", i), URL: fmt.Sprintf("http://127.0.0.1:1/%d", i)})
	}
	cfg = cfg.WithDefaults()
	log := slog.New(slog.DiscardHandler)
	f, err := fleet.New(cfg, fleet.Parts{Planner: policies.Default(), Log: log, Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	f.Begin(cfg, new(fleet.Fleet))
	for _, e := range f.Engines {
		e.SetCacheSize(fleet.CacheSize{Blocks: 2 * room / 16, BlockTokens: 16})
	}
	p := &pinning{t: t, l: newPins(), s: &Snapshot{Config: &cfg, Fleet: f, Reclaim: &reclaim.Snapshot{Fleet: f, Agent: noAgent{}}}}
	p.r = reclaim.New(log, new(background.Tasks), nil, nil, nil)
	return p
}

// answer is a new answer of an engine, which says that it pins so many tokens, and the conversation of its turn.
func (p *pinning) answer(e *fleet.Engine, tokens int) (turn string, held *reclaim.Pinned, c *conversation) {
	p.answers++
	turn = fmt.Sprint("turn ", p.answers)
	blocks := slices.Repeat([]byte("1,"), (tokens+15)/16)
	held = p.r.Pinned(p.s.Reclaim, e, fmt.Appendf(nil, `{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":[[%s]],"remote_engine_id":"run",`+
		`"remote_request_id":%q,"remote_host":"h","remote_port":5600,"remote_num_tokens":%d,"tp_size":1}`, blocks[:len(blocks)-1], turn, tokens))
	if held == nil {
		p.t.Fatal("nothing is pinned")
	}
	c = &conversation{model: "m", ids: make([]uint32, tokens+1)}
	c.at[fleet.Decode] = place{e, p.s.Fleet.RunOf(e)}
	return turn, held, c
}

// TestPinsWithinRoom: past the share of a cache what has been pinned for longest is freed, and what is larger than the share is not kept.
func TestPinsWithinRoom(t *testing.T) {
	p, now := newPinning(t, 320), time.Now()
	e, other := p.s.Fleet.Engines[0], p.s.Fleet.Engines[1]
	var held []*reclaim.Pinned
	for i := range 5 {
		turn, h, _ := p.answer(e, 100)
		if held = append(held, h); !p.l.keep(p.s, turn, e, h, now) {
			t.Fatalf("answer %d is not kept", i)
		}
	}
	if !slices.Equal(p.l.freed, held[:2]) {
		t.Errorf("%d are freed; want the first two of five of 100 tokens in a room of 320", len(p.l.freed))
	}
	if turn, h, _ := p.answer(e, 321); p.l.keep(p.s, turn, e, h, now) || len(p.l.freed) != 2 {
		t.Error("an answer larger than the room is kept, or has cost others")
	}
	if turn, h, _ := p.answer(other, 320); !p.l.keep(p.s, turn, other, h, now) || len(p.l.freed) != 2 {
		t.Error("an engine has no room because of another")
	}
	if p.l.ended[PinOver] != 3 {
		t.Errorf("%v", p.l.ended)
	}
}

// TestPinsThatAreNotKept: what is too short, of several kinds of caches, of an unknown size or not to be freed is not kept; nor is anything by default.
func TestPinsThatAreNotKept(t *testing.T) {
	now := time.Now()
	for name, change := range map[string]func(p *pinning){
		"by default":       func(p *pinning) { p.s.Config.Migration.PinnedFor = 0 },
		"in dry_run":       func(p *pinning) { p.s.Config.Migration.Mode = config.MigrationDryRun },
		"short":            func(p *pinning) { p.s.Config.Migration.MinTokens = 101 },
		"no agent":         func(p *pinning) { p.s.Reclaim.Agent = nil },
		"cache not known":  func(p *pinning) { p.s.Fleet.Engines[0].SetCacheSize(fleet.CacheSize{}) },
		"the gateway ends": func(p *pinning) { p.l.stopped = true },
		"failed before":    func(p *pinning) { p.l.read(p.s.Fleet.Engines[0], Failed, now) },
	} {
		p := newPinning(t, 320)
		change(p)
		e := p.s.Fleet.Engines[0]
		if turn, h, _ := p.answer(e, 100); p.l.keep(p.s, turn, e, h, now) {
			t.Errorf("%s: it is kept", name)
		}
	}
	p := newPinning(t, 320)
	e := p.s.Fleet.Engines[0]
	for _, blocks := range []string{"[[1,2,3]]", "[[1,2,3,4],[1]]", "[1,2,3,4]", "[]"} {
		h := p.r.Pinned(p.s.Reclaim, e, []byte(`{"do_remote_decode":true,"remote_block_ids":`+blocks+`,"remote_engine_id":"run","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_num_tokens":60}`))
		if h == nil || p.l.keep(p.s, "turn", e, h, now) {
			t.Errorf("60 tokens in blocks %s are kept", blocks)
		}
	}
}

// TestDoubtedPins: after a failed read what the engine pins is not read for a minute, then for two; a read that succeeds ends that.
func TestDoubtedPins(t *testing.T) {
	p, now := newPinning(t, 320), time.Now()
	e := p.s.Fleet.Engines[0]
	for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		p.l.read(e, Failed, now)
		if p.l.doubted(e, now.Add(want)) || !p.l.doubted(e, now.Add(want-1)) {
			t.Errorf("it is not doubted for %v", want)
		}
		now = now.Add(want)
	}
	p.l.read(e, Late, now)
	if p.l.doubted(e, now) {
		t.Error("it is doubted after a read that was late")
	}
	p.l.read(e, Moved, now)
	p.l.read(e, Failed, now)
	if p.l.doubted(e, now.Add(time.Minute)) {
		t.Error("one that succeeded does not end it")
	}
}

// TestPinWalks has answers, turns, moves and time come in any order. Each answer that is kept is read by one move or freed, once; none is kept after its
// time or past the room.
func TestPinWalks(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 23))
		p, now := newPinning(t, 400), time.Unix(1e9, 0)
		type turn struct {
			name string
			c    *conversation
		}
		var turns []turn
		kept, gone := map[string]bool{}, map[string]int{}
		name := func(h *reclaim.Pinned) string { return string(h.Params()) }
		of := map[*pin]string{}
		for range 60 {
			e := p.s.Fleet.Engines[rng.IntN(2)]
			switch rng.IntN(7) {
			case 0, 1:
				n := 16 + rng.IntN(200)
				at, h, c := p.answer(e, n)
				if p.l.keep(p.s, at, e, h, now) {
					kept[name(h)] = true
					of[p.l.turns[at]] = name(h)
				}
				turns = append(turns, turn{at, c})
			case 2, 3:
				if len(turns) > 0 {
					i := rng.IntN(len(turns))
					if p.l.claim(turns[i].name, turns[i].c, time.Minute); rng.IntN(3) == 0 { // its conversation goes on
						if was := turns[i].c.pin; was != nil {
							p.l.give(was, PinReplaced)
						}
					}
				}
			case 4:
				if len(turns) > 0 {
					c := turns[rng.IntN(len(turns))].c
					was := c.pin
					n := 16 * rng.IntN(1+len(c.ids)/16)
					if took := p.l.take(c, c.at[fleet.Decode].engine, n, 16, now); took != nil {
						if was == nil || took.tokens != n || n > was.tokens {
							t.Fatalf("seed %d: %d tokens are read of %+v", seed, n, was)
						}
						gone[of[was]]++
					}
				}
			case 5:
				now = now.Add(time.Duration(rng.IntN(20)) * time.Second)
			case 6:
				p.l.sweep(p.s, now)
				for _, all := range p.l.of {
					for _, one := range all {
						if !now.Before(one.expires) {
							t.Fatalf("seed %d: kept after its time", seed)
						}
					}
				}
			}
			for e, all := range p.l.of {
				used := 0
				for _, one := range all {
					used += one.tokens
				}
				if used > 400 {
					t.Fatalf("seed %d: %s pins %d tokens", seed, e.Name, used)
				}
			}
		}
		p.l.stopped = true
		p.l.sweep(p.s, now)
		for _, h := range p.l.freed {
			gone[name(h)]++
		}
		if len(p.l.of) > 0 || len(p.l.turns) > 0 || len(gone) != len(kept) {
			t.Fatalf("seed %d: %d kept, %d read or freed, left %v", seed, len(kept), len(gone), p.l.of)
		}
		for which, n := range gone {
			if n != 1 || !kept[which] {
				t.Fatalf("seed %d: read or freed %d times: %s", seed, n, which)
			}
		}
	}
}
