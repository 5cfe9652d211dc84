package sim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// plainCosts are for schedules that are computed by hand: a step takes 10 ms, and 1 ms for each token of it; a transfer 5 ms and
// 1 ms for each token.
func plainCosts(blocks int) Costs {
	return Costs{Step: 10000, Prefill: 1000, Decode: 1000, KVBytes: 1000, Link: 0.001, LinkSetup: 5000, Blocks: blocks}
}

// runsOf are runs of one block.
func runsOf(ids ...uint64) []Run {
	var runs []Run
	for _, id := range ids {
		runs = append(runs, Run{id, 1})
	}
	return runs
}

// story submits requests at their times and returns what was said, in order.
type story struct {
	fleet *ModelFleet
	names map[*ModelSeq]string
	lines []string
}

func newStory(push bool, engines ...*modelEngine) *story {
	return &story{fleet: NewModelFleet(push, engines...), names: map[*ModelSeq]string{}}
}

func (s *story) until(at time.Duration) {
	for _, t := range s.fleet.Advance(at) {
		line := fmt.Sprintf("%v %s", t.At, s.names[t.Seq])
		if t.Last {
			line += " ends"
		}
		if t.Err != nil {
			line += ": " + t.Err.Error()
		}
		s.lines = append(s.lines, line)
	}
}

func (s *story) submit(t *testing.T, at time.Duration, engine int, name string, q ModelSeq) *ModelSeq {
	t.Helper()
	s.until(at)
	s.names[&q] = name
	if err := s.fleet.Submit(engine, &q); err != nil {
		t.Fatal(err)
	}
	return &q
}

func (s *story) want(t *testing.T, want string) {
	t.Helper()
	s.until(time.Hour)
	if d := cmp.Diff(strings.Fields(strings.ReplaceAll(strings.TrimSpace(want), "\n", " ")), strings.Fields(strings.Join(s.lines, " "))); d != "" {
		t.Errorf("%s\ngot:\n%s", d, strings.Join(s.lines, "\n"))
	}
	for i, e := range s.fleet.engines {
		if e.pool.used != 0 || e.coming != 0 || len(e.running)+len(e.waiting) != 0 {
			t.Errorf("engine %d keeps %d blocks, %d requests that wait for KV, %d that run, %d that wait", i, e.pool.used, e.coming, len(e.running), len(e.waiting))
		}
	}
}

// TestModelledSchedules holds schedules against those computed by hand.
func TestModelledSchedules(t *testing.T) {
	t.Run("one request", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(100), 1000))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 20, Answer: 3})
		s.want(t, "30ms a\n41ms a\n52ms a ends") // 10+20, then 10+1 each
	})
	t.Run("a prompt in chunks makes others wait", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(100), 16))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 10, Answer: 4})
		s.submit(t, 5*time.Millisecond, 0, "b", ModelSeq{Prompt: 40, Answer: 2})
		// a's prompt until 20; then a's token beside 15 of b's prompt, twice (26 each); then 10 of b's and one of a's (21); then b alone
		s.want(t, "20ms a\n46ms a\n72ms a\n93ms a ends\n93ms b\n104ms b ends")
	})
	t.Run("batch", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(100), 1000))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 10, Answer: 2})
		s.submit(t, 1*time.Millisecond, 0, "b", ModelSeq{Prompt: 10, Answer: 2})
		s.want(t, "20ms a\n41ms a ends\n41ms b\n52ms b ends") // the second step: 10 + 10 of b + 1 of a
	})
	t.Run("a place", func(t *testing.T) {
		e := newModelEngine(plainCosts(100), 1000)
		e.most = 1
		s := newStory(false, e)
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 10, Answer: 2})
		s.submit(t, 0, 0, "b", ModelSeq{Prompt: 10, Answer: 1})
		s.want(t, "20ms a\n31ms a ends\n51ms b ends")
	})
	t.Run("blocks", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(3), 1000))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 20, Answer: 2}) // two blocks of the three
		s.submit(t, 0, 0, "b", ModelSeq{Prompt: 20, Answer: 1})
		s.want(t, "30ms a\n41ms a ends\n71ms b ends")
		if err := s.fleet.Submit(0, &ModelSeq{Prompt: 48, Answer: 2}); !errors.Is(err, errTooLarge) {
			t.Errorf("got %v; want that it is too large", err)
		}
	})
	t.Run("the prefix cache is free", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(100), 1000))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 40, Answer: 1, Runs: runsOf(1, 2)})
		s.submit(t, 100*time.Millisecond, 0, "b", ModelSeq{Prompt: 36, Answer: 1, Runs: runsOf(1, 2)})
		s.submit(t, 200*time.Millisecond, 0, "c", ModelSeq{Prompt: 32, Answer: 1, Runs: runsOf(1, 2)}) // its last block is computed
		s.submit(t, 300*time.Millisecond, 0, "d", ModelSeq{Prompt: 36, Answer: 1, Runs: runsOf(3, 2)}) // the same block behind another
		s.want(t, "50ms a ends\n114ms b ends\n226ms c ends\n346ms d ends")
		if e := s.fleet.engines[0]; e.found != 32+16 || s.fleet.possible != 32+16 || s.fleet.prompts != 144 {
			t.Errorf("found %d of %d possible of %d; want 48 of 48 of 144", e.found, s.fleet.possible, s.fleet.prompts)
		}
	})
	t.Run("admission and context cost", func(t *testing.T) {
		c := plainCosts(100)
		c.Admit, c.AdmitToken, c.DecodeContext, c.PrefillContext = 1000, 100, 1e6, 1e6
		s := newStory(false, newModelEngine(c, 4))
		s.submit(t, 0, 0, "a", ModelSeq{Prompt: 8, Answer: 2})
		// 1.8 until it is there; 10+4+(0+1+2+3); 10+4+(4+5+6+7); then 10+1+9 for the token behind 8 and one
		s.want(t, "57.8ms a\n77.8ms a ends")
	})
	t.Run("the client leaves", func(t *testing.T) {
		s := newStory(false, newModelEngine(plainCosts(100), 1000))
		a := s.submit(t, 0, 0, "a", ModelSeq{Prompt: 10, Answer: 100})
		s.submit(t, 0, 0, "b", ModelSeq{Prompt: 10, Answer: 2})
		s.until(30 * time.Millisecond)
		s.fleet.Cancel(a)
		s.want(t, "20ms a\n41ms b\n52ms b ends")
	})
}

// TestModelledHandovers holds hand-offs against those computed by hand.
func TestModelledHandovers(t *testing.T) {
	pair := func() []*modelEngine {
		return []*modelEngine{newModelEngine(plainCosts(100), 1000), newModelEngine(plainCosts(100), 1000)}
	}
	t.Run("pull", func(t *testing.T) {
		s := newStory(false, pair()...)
		p := s.submit(t, 0, 0, "p", ModelSeq{Leg: PrefillLeg, Key: "k", Prompt: 20, Answer: 1})
		if err := s.fleet.Submit(1, &ModelSeq{Leg: DecodeLeg, Key: "k", Prompt: 20, Answer: 2}); !errors.Is(err, errNoKV) {
			t.Errorf("got %v; want that there is nothing to take yet", err)
		}
		s.until(30 * time.Millisecond)
		if p.state != seqHolding || p.engine.pool.used == 0 {
			t.Errorf("prefill is in state %d with %d blocks; want that it holds some", p.state, p.engine.pool.used)
		}
		s.submit(t, 40*time.Millisecond, 1, "d", ModelSeq{Leg: DecodeLeg, Key: "k", Prompt: 20, Answer: 2})
		s.want(t, "30ms p ends\n76ms d\n87ms d ends") // 5+20 of transfer, then steps of 11
	})
	t.Run("push overlaps", func(t *testing.T) {
		s := newStory(true, pair()...)
		s.submit(t, 0, 1, "d", ModelSeq{Leg: DecodeLeg, Key: "k", Prompt: 20, Answer: 1})
		s.submit(t, 1*time.Millisecond, 0, "p", ModelSeq{Leg: PrefillLeg, Key: "k", Prompt: 20, Answer: 1})
		s.want(t, "31ms p ends\n67ms d ends") // 25 of transfer and a step of 11
	})
	t.Run("what decode has already is not moved", func(t *testing.T) {
		s := newStory(true, pair()...)
		for i, at := range []time.Duration{0, 200 * time.Millisecond} {
			key := fmt.Sprint(i)
			s.submit(t, at, 0, "p"+key, ModelSeq{Leg: PrefillLeg, Key: key, Prompt: 20, Answer: 1, Runs: runsOf(1)})
			s.submit(t, at, 1, "d"+key, ModelSeq{Leg: DecodeLeg, Key: key, Prompt: 20, Answer: 1, Runs: runsOf(1)})
		}
		s.want(t, "30ms p0 ends\n66ms d0 ends\n214ms p1 ends\n234ms d1 ends") // the second: 10+4, then 5+4, then 11
	})
	t.Run("a link carries one transfer", func(t *testing.T) {
		s := newStory(true, append(pair(), newModelEngine(plainCosts(100), 1000))...)
		for i := range 2 {
			key := fmt.Sprint(i)
			s.submit(t, 0, i, "p"+key, ModelSeq{Leg: PrefillLeg, Key: key, Prompt: 10, Answer: 1})
			s.submit(t, 0, 2, "d"+key, ModelSeq{Leg: DecodeLeg, Key: key, Prompt: 10, Answer: 1})
		}
		s.want(t, "20ms p0 ends\n20ms p1 ends\n46ms d0 ends\n61ms d1 ends") // transfers of 15 until 35 and 50
	})
	t.Run("decode waits for blocks longer than a lease", func(t *testing.T) {
		engines := []*modelEngine{newModelEngine(plainCosts(1000), 1000), newModelEngine(plainCosts(300), 1000)}
		s := newStory(true, engines...)
		s.submit(t, 0, 1, "long", ModelSeq{Prompt: 10, Answer: 4000}) // 251 of the 300 blocks, until 44.009 s
		s.submit(t, 0, 0, "p", ModelSeq{Leg: PrefillLeg, Key: "k", Prompt: 1000, Answer: 1})
		s.submit(t, 0, 1, "d", ModelSeq{Leg: DecodeLeg, Key: "k", Prompt: 1000, Answer: 1})
		s.until(45 * time.Second)
		s.lines = s.lines[len(s.lines)-1:]
		s.want(t, "44.009s long ends\n45.025s d ends") // 5 and 1000 of transfer, and a step of 11
	})
	t.Run("nobody comes", func(t *testing.T) {
		s := newStory(false, pair()...)
		s.submit(t, 0, 0, "p", ModelSeq{Leg: PrefillLeg, Key: "k", Prompt: 20, Answer: 1})
		s.want(t, "30ms p ends")
	})
	t.Run("decode leaves before and during the transfer", func(t *testing.T) {
		s := newStory(true, pair()...)
		a := s.submit(t, 0, 1, "d0", ModelSeq{Leg: DecodeLeg, Key: "0", Prompt: 20, Answer: 1})
		b := s.submit(t, 0, 1, "d1", ModelSeq{Leg: DecodeLeg, Key: "1", Prompt: 20, Answer: 1})
		s.until(1 * time.Millisecond)
		s.fleet.Cancel(a)
		s.submit(t, 1*time.Millisecond, 0, "p0", ModelSeq{Leg: PrefillLeg, Key: "0", Prompt: 20, Answer: 1})
		s.submit(t, 1*time.Millisecond, 0, "p1", ModelSeq{Leg: PrefillLeg, Key: "1", Prompt: 20, Answer: 1})
		s.until(70 * time.Millisecond)
		s.fleet.Cancel(b)
		s.want(t, "31ms p0 ends\n61ms p1 ends")
	})
}

// TestKVPoolEvicts lets prompts go by: those used last stay, ends before beginnings.
func TestKVPoolEvicts(t *testing.T) {
	p := newKVPool(4)
	use := func(hashes ...uint64) int {
		t.Helper()
		runs := runsOf(hashes...)
		h, ok := p.take(runs, len(runs), len(runs))
		if !ok {
			t.Fatalf("%v was given no blocks", hashes)
		}
		found := h.blocks
		p.remember(&h, runs, len(runs))
		p.release(&h)
		return found
	}
	use(1, 2)
	use(3, 4)
	use(5)                                     // evicts 2, the end of the first
	got := []int{use(1, 2), use(3, 4), use(5)} // 2 comes back for 4, 4 for 5, which comes back for 2
	if d := cmp.Diff([]int{1, 1, 0}, got); d != "" {
		t.Error(d)
	}
	a, _ := p.take(runsOf(1), 1, 3)
	if _, ok := p.take(nil, 0, 2); ok {
		t.Error("more blocks were given than there are")
	}
	p.release(&a)
	if p.used != 0 || len(p.known) != p.unused {
		t.Errorf("%d blocks in use, %d known, %d idle", p.used, len(p.known), p.unused)
	}
}

// TestCostsAreDerived recomputes what costs.json says of context and KV from the sizes of the models and the machines.
func TestCostsAreDerived(t *testing.T) {
	for name, m := range map[string]struct{ layers, heads, gpus float64 }{
		"llama-3.1-8b-h100":    {32, 32, 1},
		"llama-3.3-70b-4xh100": {80, 64, 4},
	} {
		c, err := CostsOf(name)
		if err != nil {
			t.Fatal(err)
		}
		kv := 2 * m.layers * 8 * 128 * 2
		for what, of := range map[string]struct{ got, want float64 }{
			"kv_bytes":           {float64(c.KVBytes), kv},
			"prefill_context_ns": {c.PrefillContext, 4 * m.layers * m.heads * 128 / (m.gpus * 989.5e12 * .65) * 1e9},
			"decode_context_ns":  {c.DecodeContext, kv / (m.gpus * 3.35e12 * .72) * 1e9},
			"link_gbs":           {c.Link, m.gpus * 50 * .87},
		} {
			if r := of.got / of.want; r < .999 || r > 1.001 {
				t.Errorf("%s: %s is %g; want %g", name, what, of.got, of.want)
			}
		}
	}
}
