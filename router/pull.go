package router

// pull is stock vLLM's NixlConnector: decode reads the blocks that prefill's answer names. Prefill keeps them
// until they were read or its lease ends, so a decode leg that was asked runs to its first event if there is time, and one
// that never was is replaced by one of a single token.
type pull struct{}

var pullTraits = traits{
	name: ConnectorPull, mode: inTurn, lingers: true, handshakes: true, reads: true,
	stock: &stockTraits{kvMode: "pull", needs: "want vLLM 0.13.0 or newer with NixlConnector"},
}

func (pull) traits() *traits { return &pullTraits }

func (pull) end(e ending, out []action) []action {
	switch e.decode {
	case legAsked:
		return append(out, action{do: doCloseDecode}, action{do: doGiveBack})
	case legAnswered:
		return append(out, action{do: doCloseDecode})
	case legWhole:
		return out
	case legBroken, legLost: // it may have read: the reference is used
		return append(out, action{do: doGiveBack})
	}
	switch e.prefill {
	case legAsked:
		return append(out, action{do: doClosePrefill})
	case legAnswered:
		return append(out, action{do: doDrainDecode})
	case legBroken: // it may have finished, but the answer did not say what it holds
		return append(out, action{do: doStrand})
	}
	return out
}
