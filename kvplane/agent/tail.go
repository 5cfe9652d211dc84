package agent

import (
	"cmp"
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/plan"
)

// tail returns the ranges of this rank's memory, in Local, that no producer has written in a transfer's last blocks though
// they are Ready, sorted and merged: nil unless blocks here are larger than the producer's.
func (o *owner) tail(x *core.Effect) []kvplane.Range {
	e := o.engines[x.Expect.Peer]
	if e == nil || x.Tokens == 0 {
		return nil
	}
	if !e.tailed {
		e.tailed, e.tails = true, o.tails(e)
	}
	var out []kvplane.Range
	for _, q := range e.tails {
		out = q.Rest(out, x.Tokens, x.Expect.Groups)
	}
	for i := range out {
		out[i].Local, out[i].Remote = out[i].Remote, 0
	}
	slices.SortFunc(out, func(a, b kvplane.Range) int { return cmp.Compare(a.Local, b.Local) })
	merged := out[:0]
	for _, r := range out {
		if n := len(merged); n > 0 && merged[n-1].Local+merged[n-1].Length == r.Local {
			merged[n-1].Length += r.Length
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// tails plans for one rank of each stage of an engine that leaves something in this rank's blocks.
func (o *owner) tails(e *engine) []*plan.Pair {
	var out []*plan.Pair
	stages := map[int]bool{}
	expected, err := o.expected(e)
	if err != nil {
		o.log.Error("kvplane: what stays old in the last blocks is not known", "err", err)
	}
	for _, x := range expected {
		if stages[x.Record.Rank.PP] {
			continue
		}
		stages[x.Record.Rank.PP] = true
		if q, err := plan.New(x.Record, o.self, o.cfg.Allow); err == nil && q.LeavesRest() { // P has got the error
			out = append(out, q)
		}
	}
	return out
}
