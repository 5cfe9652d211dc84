package connector

import "pdrouter/router/dispatch"

// plane is pdrouter's own data plane. Both engines know the transfer by its id and accept a cancel at any time. So however the attempt
// ends, both are canceled at once and both legs are closed.
type plane struct{}

var planeTraits = Traits{Name: NameKVPlane, Mode: dispatch.Together, Handshakes: true, Publishes: true, Cancels: true}

func (plane) Traits() *Traits { return &planeTraits }

func (plane) End(e dispatch.Ending, out []dispatch.Action) []dispatch.Action {
	if e.Decode == dispatch.LegWhole {
		if e.Prefill == dispatch.LegAsked {
			out = append(out, dispatch.Action{Do: dispatch.DoFinishPrefill})
		}
		return out
	}
	if e.Prefill == dispatch.LegIdle && e.Decode == dispatch.LegIdle {
		return out
	}
	out = append(out, dispatch.Action{Do: dispatch.DoCancel})
	if e.Prefill == dispatch.LegAsked {
		out = append(out, dispatch.Action{Do: dispatch.DoClosePrefill})
	}
	if e.Decode.Open() {
		out = append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
	}
	return out
}
