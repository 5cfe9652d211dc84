package router

// push is stock vLLM's NixlPushConnector: decode registers its blocks with prefill, prefill writes them when it
// has finished. A decode engine that registered holds its blocks until prefill has written them, whether its
// request lives or not, so a prefill leg runs on once decode was asked, and one that failed is asked again.
type push struct{}

var pushTraits = traits{
	name: ConnectorPush, mode: together, lingers: true, handshakes: true, writes: true,
	stock: &stockTraits{kvMode: "push", needs: "want vLLM 0.24.0 or newer with NixlPushConnector as kv_producer"},
}

func (push) traits() *traits { return &pushTraits }

func (push) end(e ending, out []action) []action {
	switch e.decode {
	case legWhole:
		if e.prefill == legAsked {
			out = append(out, action{do: doFinishPrefill})
		}
		return out
	case legAsked, legAnswered, legLost:
		switch {
		case e.decode == legAsked && e.prefill.failed(): // decode must have begun before it is ended, or nothing may be told of it
			out = append(out, action{do: doDisownDecode})
		case e.decode.open():
			out = append(out, action{do: doCloseDecode})
		}
		switch e.prefill {
		case legAsked:
			return append(out, action{do: doFinishPrefill})
		case legMoved: // what decode registered with is gone, and what the new start holds is for nobody
			return append(out, action{do: doDrainDecode}, action{do: doAbandon})
		case legBare: // what decode registered is never written, however often prefill is asked
			return append(out, action{do: doAbandon})
		case legRejected: // a body that prefill rejects, decode rejects as well
			return out
		}
		if e.decode == legAnswered { // tokens came, so the blocks did
			return out
		}
		return append(out, action{do: doRepeatPrefill}) // if it has answered, what it was to write may have got lost
	}
	// Decode holds nothing.
	switch e.prefill {
	case legAsked:
		return append(out, action{do: doClosePrefill})
	case legAnswered, legMoved:
		if e.decode == legBroken { // it may have used the reference: nobody else may
			return append(out, action{do: doGiveBack})
		}
		return append(out, action{do: doDrainDecode})
	}
	return out
}
