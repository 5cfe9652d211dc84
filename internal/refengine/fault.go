package refengine

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"pdrouter/metadata"
)

// Leg says which part of a request an engine serves.
type Leg uint8

// The legs. AnyLeg is for faults.
const (
	AnyLeg     Leg = iota
	WholeLeg       // aggregated: prompt and answer
	PrefillLeg     // the prompt, handed on
	DecodeLeg      // the answer, from a prompt that was handed on
	ExportLeg      // as PrefillLeg, in stock vLLM's way: see Pull
	ImportLeg      // as DecodeLeg, in stock vLLM's way
	legs
)

// String names the leg.
func (l Leg) String() string {
	switch l {
	case AnyLeg:
		return "any"
	case WholeLeg:
		return "whole"
	case PrefillLeg:
		return "prefill"
	case DecodeLeg:
		return "decode"
	case ExportLeg:
		return "export"
	case ImportLeg:
		return "import"
	}
	return "unknown"
}

// Do is what a fault does.
type Do uint8

// The faults.
const (
	Refuse        Do = iota + 1 // answers with Status before anything is computed
	Hang                        // takes the request and never answers
	Cut                         // cuts the connection after the first After tokens of the answer
	WithholdOffer               // prefill: the agent of Rank never hears that the blocks are finished
	FlipBit                     // decode: Bit of a word of KV changes before the first token
	SwapBlocks                  // decode: blocks Block and Other of the sequence change places before the first token
	ForeignBlock                // decode: block Block of the sequence is overwritten with the Other-th of those that are not its own
	Recompute                   // decode, import: the KV that was received is not used; the prompt is computed again
	Late                        // import: the KV that was received is there only after Wait, as over a slow link
)

// String names what the fault does.
func (d Do) String() string {
	switch d {
	case Refuse:
		return "refuse"
	case Hang:
		return "hang"
	case Cut:
		return "cut"
	case WithholdOffer:
		return "withhold offer"
	case FlipBit:
		return "flip bit"
	case SwapBlocks:
		return "swap blocks"
	case ForeignBlock:
		return "foreign block"
	case Recompute:
		return "recompute"
	case Late:
		return "late"
	}
	return "unknown"
}

// Fault is one thing that goes wrong on purpose, with the Nth request of a leg.
type Fault struct {
	Leg Leg
	Nth int // counted from 0 over the requests of Leg; -1 is each of them
	Do  Do

	Status int           // Refuse: default 503
	After  int           // Cut
	Wait   time.Duration // Late
	From   string        // Late: of KV that comes from the engine of this name alone; "" for all

	Rank                           int // WithholdOffer, FlipBit, SwapBlocks, ForeignBlock: counted stage by stage; -1 is every rank
	Layer, Plane, Head, Token, Bit int // FlipBit: Head counts within the rank, Bit over the words of the head
	Block, Other                   int // SwapBlocks, ForeignBlock
}

func (f Fault) validate() error {
	switch {
	case f.Do < Refuse || f.Do > Late:
		return fmt.Errorf("do is %d; want one of the faults", f.Do)
	case f.Leg >= legs:
		return fmt.Errorf("leg is %d; want one of the legs", f.Leg)
	case f.Nth < -1:
		return fmt.Errorf("nth is %d; want -1 or more", f.Nth)
	}
	return nil
}

// SetFaults replaces the faults that hit the requests from now on.
func (e *Engine) SetFaults(faults ...Fault) {
	for _, f := range faults {
		if err := f.validate(); err != nil {
			panic(err) // a mistake of the program that asks for it
		}
	}
	e.ask(func() { e.faults, e.legs = faults, [legs]int{} })
}

// strike returns the faults that hit the next request of a leg. counts is advanced.
func strike(faults []Fault, counts *[legs]int, leg Leg) []Fault {
	var out []Fault
	for _, f := range faults {
		if (f.Leg == AnyLeg || f.Leg == leg) && (f.Nth < 0 || f.Nth == counts[f.Leg]) {
			out = append(out, f)
		}
	}
	counts[AnyLeg]++
	counts[leg]++
	return out
}

// refusal is what a Refuse fault answers.
func refusal(f Fault) error {
	status := cmp.Or(f.Status, http.StatusServiceUnavailable)
	return &apiError{Status: status, Type: "BrokenError", Message: "broken on purpose"}
}

// find returns the first fault of a kind.
func find(faults []Fault, do Do) (Fault, bool) {
	for _, f := range faults {
		if f.Do == do {
			return f, true
		}
	}
	return Fault{}, false
}

// received has a sequence whose prompt came from another engine go on with it, or compute it all the same.
func (e *Engine) received(s *Sequence) {
	n := len(s.req.Tokens)
	s.times.Received = time.Now()
	s.state = running
	e.running = append(e.running, s)
	e.counts.prompt[sourceCache] += uint64(s.cached)
	if _, ok := find(s.faults, Recompute); ok {
		s.computed = min(s.cached, (n-1)/e.cfg.BlockTokens*e.cfg.BlockTokens) // a token is left to compute
		return
	}
	e.counts.prompt[sourceExternal] += uint64(n - s.cached)
	s.external = n - s.cached
	s.computed, s.stored = n, true
}

// damage applies a fault of memory to the blocks of a sequence on the ranks it names, as far as they keep the layer.
func (g *group) damage(f Fault, table []int32) {
	for i, r := range g.ranks {
		c := r.cache
		if f.Rank >= 0 && f.Rank != i || f.Do == FlipBit && !c.layers.has(f.Layer) {
			continue
		}
		switch f.Do {
		case FlipBit:
			c.flip(f.Layer, table[f.Token/c.tokens], f.Plane, c.heads.first+f.Head, f.Token%c.tokens, f.Bit)
		case SwapBlocks:
			c.swap(table[f.Block], table[f.Other])
		case ForeignBlock:
			c.copyBlock(table[f.Block], foreign(c.blocks, table, f.Other))
		}
	}
}

// foreign returns the nth block, from 0 and round again, that is not in a table; block 0 if there is none.
func foreign(blocks int, table []int32, n int) int32 {
	if len(table) >= blocks {
		return 0
	}
	n %= blocks - len(table)
	for b := range int32(blocks) {
		if slices.Contains(table, b) {
			continue
		}
		if n == 0 {
			return b
		}
		n--
	}
	return 0
}

// serves reports whether an engine of a role takes a leg. Stock vLLM goes by what a request asks for, whatever the role.
func serves(role metadata.Role, leg Leg) bool {
	return role == metadata.Both || leg == WholeLeg || leg == ExportLeg || leg == ImportLeg || role == metadata.Prefill && leg == PrefillLeg || role == metadata.Decode && leg == DecodeLeg
}
