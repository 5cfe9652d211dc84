package handoff

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// EngineStats is what is known of a decode engine.
type EngineStats struct {
	Recomputing bool          `json:"recomputing"` // it computes prompts that it should receive
	Prompts     [Signs]uint64 `json:"-"`           // that it has computed since the start, by how that was seen
}

// PairStats is what is known of a pair that has had hand-offs lately.
type PairStats struct {
	Prefill string  `json:"prefill"`
	Decode  string  `json:"decode"`
	Slow    bool    `json:"-"`
	Seconds float64 `json:"seconds"`       // of its recent hand-offs, in the mean
	Times   float64 `json:"times_as_long"` // as usual; 0 if what is usual is not known. It is large too while decode computes prompts, which is not Slow
}

// Engine returns what is known of a decode engine; nil if it has received nothing yet.
func (w *Watch) Engine(name string) *EngineStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engines[name]
	if e == nil {
		return nil
	}
	return &EngineStats{Recomputing: e.recomputing, Prompts: e.prompts}
}

// Pairs returns the pairs that have had hand-offs lately, by name.
func (w *Watch) Pairs(now time.Time) []PairStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]PairStats, 0, len(w.pairs))
	for key, p := range w.pairs {
		if now.Sub(p.seen) < forgotten {
			out = append(out, PairStats{Prefill: key[0], Decode: key[1], Slow: p.slow, Seconds: p.late.whole / max(p.late.n, 1e-9), Times: p.times})
		}
	}
	slices.SortFunc(out, func(x, y PairStats) int {
		return cmp.Or(strings.Compare(x.Prefill, y.Prefill), strings.Compare(x.Decode, y.Decode))
	})
	return out
}
