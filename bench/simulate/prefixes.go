package simulate

import (
	"strconv"

	"pdrouter/bench/load"
	"pdrouter/policies/prefixes"
)

// Pieces of a prompt are as the gateway's, if a token has four bytes: of the first blocks of a trace there are four each, the others are one each.
const (
	finePiece  = load.TraceBlock / 4
	fineBlocks = 8
)

// tokensOf is how many tokens the first pieces of a prompt have.
func tokensOf(pieces int) int {
	fine := min(pieces, fineBlocks*load.TraceBlock/finePiece)
	return finePiece*fine + load.TraceBlock*(pieces-fine)
}

// look notes what is known of the engines and what they are thought to have of a prompt.
func (r *replay) look(t load.Request, now float64) {
	r.chain = r.chain[:0]
	var key prefixes.Key
	for tokens := tokensOf(1); tokens <= t.Input; tokens = tokensOf(len(r.chain) + 1) {
		key = r.index.Key(key, strconv.Itoa(t.Blocks[(tokens-1)/load.TraceBlock]))
		r.chain = append(r.chain, uint64(key))
	}
	r.pieces = r.index.Find(r.chain, r.pieces)
	for _, e := range r.engines {
		e.known.Cached, e.load = min(tokensOf(int(r.pieces[e.holder])), t.Input-1), e.work.Work(now) // the last token is always computed
	}
	for i, e := range r.prefill {
		r.view.Prefill[i], r.view.Forecast.Prefill[i] = e.known, e.load
	}
	for i, e := range r.decode {
		r.view.Decode[i], r.view.Forecast.Decode[i] = e.known, e.load
	}
	r.view.Forecast.Demand = r.model.Demand(now)
}

// note notes that an engine has a prompt.
func (r *replay) note(chain []uint64, e *engine) {
	if len(chain) == 0 {
		return
	}
	r.ends = r.ends[:0]
	for i, hash := range chain[1:] {
		r.ends = append(r.ends, prefixes.End{Hash: hash, Tokens: tokensOf(i+2) - tokensOf(i+1)})
	}
	r.index.Note(&prefixes.Prompt{Links: chain[:1], Rate: finePiece / float64(prefixes.Bytes(1)), Ends: r.ends}, e.holder)
}
