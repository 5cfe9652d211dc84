package migration

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pdrouter/router/fleet"
)

// TestPinsOfAnotherRun: what a run has pinned is not claimed by a turn that is noted after the engine has restarted.
func TestPinsOfAnotherRun(t *testing.T) {
	p, now := newPinning(t, 320), time.Now()
	e := p.s.Fleet.Engines[0]
	turn, h, _ := p.answer(e, 100)
	if !p.l.keep(p.s, turn, e, h, now) {
		t.Fatal("it is not kept")
	}
	e.Generation.Add(1)
	c := &conversation{model: "m", ids: make([]uint32, 101)}
	c.at[fleet.Decode] = place{e, p.s.Fleet.RunOf(e)}
	p.l.claim(turn, c, time.Minute)
	if p.l.take(c, e, 96, 16, now) != nil || len(p.l.freed) != 1 || len(p.l.of) != 0 {
		t.Errorf("a move reads what another run has pinned; %d are freed", len(p.l.freed))
	}
}

// TestPinsInBlocksOfAnotherSize: what was kept while the size of blocks was not known is not read in blocks of another size: there are not as many of
// them as the tokens need.
func TestPinsInBlocksOfAnotherSize(t *testing.T) {
	p, now := newPinning(t, 320), time.Now()
	e := p.s.Fleet.Engines[0]
	turn, h, c := p.answer(e, 100)
	if !p.l.keep(p.s, turn, e, h, now) {
		t.Fatal("it is not kept")
	}
	p.l.claim(turn, c, time.Minute)
	if got := p.l.take(c, e, 96, 32, now); got != nil || len(p.l.freed) != 1 {
		t.Errorf("a move of 96 tokens reads 3 blocks of 16: %+v; %d are freed", got, len(p.l.freed))
	}
}

// TestPinsWithSmallerLimits: a change of the configuration holds for what is pinned already.
func TestPinsWithSmallerLimits(t *testing.T) {
	for name, change := range map[string]func(p *pinning) (after time.Duration, kept int){
		"share": func(p *pinning) (time.Duration, int) { p.s.Config.Migration.PinnedShare = 0.2; return 0, 1 }, // of 640 tokens
		"time": func(p *pinning) (time.Duration, int) {
			p.s.Config.Migration.PinnedFor = 10 * time.Second
			return 11 * time.Second, 0
		},
		"none": func(*pinning) (time.Duration, int) { return 11 * time.Second, 3 },
	} {
		p, now := newPinning(t, 320), time.Now()
		e := p.s.Fleet.Engines[0]
		for range 3 {
			turn, h, c := p.answer(e, 100)
			if !p.l.keep(p.s, turn, e, h, now) {
				t.Fatal("it is not kept")
			}
			p.l.claim(turn, c, time.Minute)
		}
		after, kept := change(p)
		p.l.sweep(p.s, now.Add(after))
		if len(p.l.of[e]) != kept || len(p.l.freed) != 3-kept {
			t.Errorf("%s: %d are kept and %d freed; want %d kept", name, len(p.l.of[e]), len(p.l.freed), kept)
		}
	}
}

// TestPinsOfLongParams: params that are far longer than what they list are not kept, as they would take the gateway's memory.
func TestPinsOfLongParams(t *testing.T) {
	p, now := newPinning(t, 320), time.Now()
	e := p.s.Fleet.Engines[0]
	h := p.r.Pinned(p.s.Reclaim, e, fmt.Appendf(nil, `{"do_remote_decode":true,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"run","remote_request_id":"r","remote_host":"h",`+
		`"remote_port":1,"remote_num_tokens":60,"other":%q}`, bytes.Repeat([]byte("x"), 1<<20)))
	if h == nil {
		t.Fatal("nothing is pinned")
	}
	if p.l.keep(p.s, "turn", e, h, now) {
		t.Error("params of a MiB for 4 blocks are kept")
	}
}
