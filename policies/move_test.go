package policies

import (
	"testing"
)

// moveOfPrompt is a move of 32,000 tokens from an engine with this work, which takes so many seconds to any of n engines.
func moveOfPrompt(w Work, seconds float64, prefills, decodes int) Move {
	m := Move{From: "x", Tokens: 32_000, Cached: 32_000, Last: 16, Work: w, Differs: .2, Prefill: make([]float64, prefills), Decode: make([]float64, decodes)}
	for _, to := range [][]float64{m.Prefill, m.Decode} {
		for i := range to {
			to[i] = seconds
		}
	}
	return m
}

// TestMovesByPrice: a conversation of 32,000 tokens is at the first decode engine. Its next turn is computed there, or elsewhere after a move, or anew.
func TestMovesByPrice(t *testing.T) {
	demand := Demand{Rate: 4, Answer: 100, LongGaps: 10, Error: .1, Move: [3]float64{.001, 1e-6}}
	type answer struct {
		Prefill, Decode int
		Move            uint8
	}
	for _, tt := range []struct {
		name            string
		prefill, decode []known
		seconds         float64
		pinned          bool
		want            answer
	}{
		{name: "idle engines", decode: []known{at(0, 0, 32_000), at(0, 0, 0)}, seconds: .1, want: answer{-1, 0, 0}},
		{name: "many streams at its engine", decode: []known{at(0, 30, 32_000), at(0, 0, 0)}, seconds: .1, want: answer{-1, 1, 1}},
		{name: "a move that takes longer than to compute it", decode: []known{at(0, 30, 32_000), at(0, 0, 0)}, seconds: 4, want: answer{-1, 1, 0}},
		{name: "a move that is not possible now", decode: []known{at(0, 30, 32_000), at(0, 0, 0)}, want: answer{-1, 1, 0}},
		{name: "the other has it too", decode: []known{at(0, 30, 32_000), at(0, 0, 32_000)}, seconds: .1, want: answer{-1, 1, 0}},
		{name: "to prefill, and back", prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 30, 32_000)}, seconds: .1, want: answer{0, 0, 1}},
		{name: "its engine computes prompts for long", decode: []known{at(9, 30, 32_000), at(0, 0, 0)}, seconds: .1, want: answer{-1, 1, 0}},
		{name: "its engine computes prompts for long, and pins it", decode: []known{at(9, 30, 32_000), at(0, 0, 0)}, seconds: .1, pinned: true, want: answer{-1, 1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fleetOf(tt.prefill, tt.decode, demand)
			move := func(seconds float64) Move {
				m := moveOfPrompt(tt.decode[0].Work, seconds, len(tt.prefill), len(tt.decode))
				if m.Pinned = tt.pinned; m.Pinned {
					m.Work = Work{}
				}
				return m
			}
			f.Forecast.Moves = []Move{move(tt.seconds)}
			q := Request{PromptTokens: 33_000}
			c, stages := costPolicy(t, "").Explain(q, f, Draw{})
			if got := (answer{c.Prefill, c.Decode, c.Move}); got != tt.want {
				t.Fatalf("got %+v; want %+v: %+v", got, tt.want, stages[len(stages)-1].Paths)
			}
			if c.Move == 0 {
				return
			}
			f.Forecast.Moves[0] = move(float64(c.Patience) * 1.01)
			f.Forecast.Moves[0].Differs, f.Forecast.Demand.Error = 0, 0
			if late := costPolicy(t, "").Choose(q, f, Draw{}); late.Move > 0 {
				t.Errorf("%+v: a move is worth while that takes longer than its patience, which is %v s", late, c.Patience)
			}
			f.Forecast.Moves[0] = move(float64(c.Patience) / 2)
			f.Forecast.Moves[0].Differs = 0
			if soon := costPolicy(t, "").Choose(q, f, Draw{}); soon.Move == 0 {
				t.Errorf("a move is not worth while that takes half its patience, which is %v s", c.Patience)
			}
		})
	}
}
