package report

import (
	"math"
	"time"
)

// FirstTokenPart is a part of the time to the first token. Parts follow each other, and add up to it. They are finer than stages, and those that a
// gateway cannot see are estimated by the speeds that the gateway has learned; the transfer of a slow pair also by what is usual for the pair.
//
//	gateway_queue    until the legs are sent: checks, the queue, failed attempts, the choice, the handshake
//	prefill_queue    until the engine computes the prompt, and the way to it and back
//	prefill_compute  the prompt is computed
//	transfer         its KV goes to decode
//	decode_queue     until decode goes on with it, and the way to it and back
//	first_step       decode's first token
//
// A request that is not split has the first three, at its decode engine. Where nothing is estimated, prefill is prefill_queue and prefill_compute as
// one, and decode is all that comes after, with the transfer where that is not a part.
type FirstTokenPart struct {
	Part      string  `json:"part"`
	Seconds   float64 `json:"seconds"`
	Estimated bool    `json:"estimated,omitempty"`
}

// estimates are which shares of what a gateway sees as one the parts of it are thought to have, in 255ths; 0: nothing is thought.
type estimates struct {
	prompt   uint8 // computing the prompt, of the time until prefill answered
	transfer uint8 // of the time from then to the first token
	step     uint8 // likewise
}

// Estimate notes how long what cannot be seen is thought to take, in seconds, whatever waits before it: computing the prompt; from prefill's answer to
// decode's first token, as usual for the pair; and decode's first step. The first token has come.
func (s *Summary) Estimate(prompt, handOff, step float64) {
	_, prefill, rest := s.seen()
	s.estimates = estimates{shareOf(prompt, prefill), shareOf(max(0, handOff-step), rest), shareOf(step, rest)}
}

// EstimateTransfer notes how much longer than usual the path between the engines has taken. It is for after Estimate.
func (s *Summary) EstimateTransfer(excess time.Duration) {
	_, _, rest := s.seen()
	s.estimates.transfer = max(s.estimates.transfer, shareOf(excess.Seconds(), rest))
}

func shareOf(seconds float64, of time.Duration) uint8 {
	if seconds <= 0 || of <= 0 {
		return 0
	}
	return uint8(min(255, max(1, math.Round(255*seconds/of.Seconds()))))
}

func part(share uint8, of time.Duration) time.Duration { return of * time.Duration(share) / 255 }

// seen are the times that can be seen until the first token: until the legs are sent, until prefill answered, and after that. Without a split the
// second is all of the rest.
func (s *Summary) seen() (gateway, prefill, rest time.Duration) {
	stages := s.Phases.Stages()
	for i := StageAdmit; i <= StagePair; i++ {
		gateway += max(0, stages[i])
	}
	prefill, rest = stages[StagePrefill], s.Phases.FirstToken-gateway
	if prefill < 0 {
		return gateway, rest, 0
	}
	return gateway, prefill, rest - prefill
}

// FirstTokenParts are the parts of the time to the first token; none if none came.
func (s *Summary) FirstTokenParts() (out []FirstTokenPart) {
	if s.Phases.FirstToken <= 0 {
		return nil
	}
	add := func(part string, d time.Duration, estimated bool) {
		out = append(out, FirstTokenPart{part, d.Seconds(), estimated})
	}
	gateway, prefill, rest := s.seen()
	add("gateway_queue", gateway, false)
	if s.estimates.prompt > 0 {
		prompt := part(s.estimates.prompt, prefill)
		add("prefill_queue", prefill-prompt, true)
		add("prefill_compute", prompt, true)
	} else {
		add("prefill", prefill, false)
	}
	stages := s.Phases.Stages()
	if stages[StagePrefill] < 0 { // not split
		return out
	}
	step := part(s.estimates.step, rest)
	transfer, seen := stages[StageTransfer], stages[StageTransfer] > 0 // as the plane reports it
	if !seen {
		transfer = min(part(s.estimates.transfer, rest), max(0, rest-step))
	}
	rest -= transfer
	step = min(step, rest)
	if s.estimates.step == 0 {
		if transfer > 0 {
			add("transfer", transfer, !seen)
		}
		add("decode", rest, transfer > 0 && !seen)
		return out
	}
	add("transfer", transfer, !seen)
	add("decode_queue", rest-step, true)
	add("first_step", step, true)
	return out
}
