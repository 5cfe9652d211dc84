package refengine

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

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
	}
	return "unknown"
}

// Fault is one thing that goes wrong on purpose, with the Nth request of a leg.
type Fault struct {
	Leg Leg
	Nth int // counted from 0 over the requests of Leg; -1 is each of them
	Do  Do

	Status int // Refuse: default 503
	After  int // Cut

	Rank                           int // WithholdOffer, FlipBit, SwapBlocks, ForeignBlock: counted stage by stage; -1 is every rank
	Layer, Plane, Head, Token, Bit int // FlipBit: Head counts within the rank, Bit over the words of the head
	Block, Other                   int // SwapBlocks, ForeignBlock
}

func (f Fault) validate() error {
	switch {
	case f.Do < Refuse || f.Do > ForeignBlock:
		return fmt.Errorf("do is %d; want one of the faults", f.Do)
	case f.Leg > DecodeLeg:
		return fmt.Errorf("leg is %d; want one of the legs", f.Leg)
	case f.Nth < -1:
		return fmt.Errorf("nth is %d; want -1 or more", f.Nth)
	}
	return nil
}

// strike returns the faults that hit the next request of a leg. counts is advanced.
func strike(faults []Fault, counts *[DecodeLeg + 1]int, leg Leg) []Fault {
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

// serves reports whether an engine of a role takes a leg.
func serves(role metadata.Role, leg Leg) bool {
	return role == metadata.Both || leg == WholeLeg || role == metadata.Prefill && leg == PrefillLeg || role == metadata.Decode && leg == DecodeLeg
}
