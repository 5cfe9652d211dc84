package connector

import "pdrouter/router/dispatch"

// push is stock vLLM's NixlPushConnector: decode registers its blocks with prefill, prefill writes them when it
// has finished. A decode engine that registered holds its blocks until prefill has written them, whether its
// request lives or not, so a prefill leg runs on once decode was asked, and one that failed is asked again.
type push struct{}

var pushTraits = Traits{
	Name: NamePush, Mode: dispatch.Together, drains: true, Handshakes: true, Writes: true,
	Stock: &StockTraits{kvMode: "push", Needs: "want vLLM 0.24.0 or newer with NixlPushConnector as kv_producer"},
}

func (push) Traits() *Traits { return &pushTraits }

func (push) End(e dispatch.Ending, out []dispatch.Action) []dispatch.Action {
	switch e.Decode {
	case dispatch.LegWhole:
		if e.Prefill == dispatch.LegAsked {
			out = append(out, dispatch.Action{Do: dispatch.DoFinishPrefill})
		}
		return out
	case dispatch.LegAsked, dispatch.LegAnswered, dispatch.LegLost:
		switch {
		case e.Decode == dispatch.LegAsked && e.Prefill.Failed(): // decode must have begun before it is ended, or nothing may be told of it
			out = append(out, dispatch.Action{Do: dispatch.DoDisownDecode})
		case e.Decode.Open():
			out = append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
		}
		switch e.Prefill {
		case dispatch.LegAsked:
			return append(out, dispatch.Action{Do: dispatch.DoFinishPrefill})
		case dispatch.LegMoved: // what decode registered with is gone, and what the new start holds is for nobody
			return append(out, dispatch.Action{Do: dispatch.DoDrainDecode}, dispatch.Action{Do: dispatch.DoAbandon})
		case dispatch.LegBare: // what decode registered is never written, however often prefill is asked
			return append(out, dispatch.Action{Do: dispatch.DoAbandon})
		case dispatch.LegRejected: // a body that prefill rejects, decode rejects as well
			return out
		}
		if e.Decode == dispatch.LegAnswered { // tokens came, so the blocks did
			return out
		}
		return append(out, dispatch.Action{Do: dispatch.DoRepeatPrefill}) // if it has answered, what it was to write may have got lost
	}
	// Decode holds nothing.
	switch e.Prefill {
	case dispatch.LegAsked:
		return append(out, dispatch.Action{Do: dispatch.DoClosePrefill})
	case dispatch.LegAnswered, dispatch.LegMoved:
		if e.Decode == dispatch.LegBroken { // it may have used the reference: nobody else may
			return append(out, dispatch.Action{Do: dispatch.DoGiveBack})
		}
		return append(out, dispatch.Action{Do: dispatch.DoDrainDecode})
	}
	return out
}
