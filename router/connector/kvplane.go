package connector

import (
	"bytes"
	"strconv"

	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
)

// plane is pdrouter's own data plane. Both engines know the transfer by its id and accept a cancel at any time. So however the attempt
// ends, both are canceled at once and both legs are closed.
type plane struct{}

var planeTraits = Traits{Name: NameKVPlane, Mode: dispatch.Together, Handshakes: true, EitherRole: true, Publishes: true, Cancels: true}

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

func (plane) PrefillMembers(dst []byte, h *Handoff) []byte {
	return h.planeParams(dst, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`, h.Decode)
}

func (plane) DecodeMembers(dst []byte, h *Handoff) []byte {
	return h.planeParams(dst, `"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"`, h.Prefill)
}

func (h *Handoff) planeParams(dst []byte, head string, peer metadata.Incarnation) []byte {
	dst = append(dst, head...)
	dst = append(dst, h.Transfer...)
	dst = append(dst, `","peer":{"engine":`...)
	dst = openai.AppendString(dst, peer.Engine)
	dst = append(dst, `,"generation":`...)
	dst = strconv.AppendUint(dst, peer.Generation, 10)
	dst = append(dst, `},"valid_ms":`...)
	dst = strconv.AppendInt(dst, h.ValidMS, 10)
	if h.Ticket != nil {
		dst = append(dst, `,"ticket":"`...)
		dst = append(append(dst, h.Ticket...), '"') // base64url
	}
	return append(dst, '}')
}

// Accept wants the transfer's own id back.
func (plane) Accept(h *Handoff, kv []byte) dispatch.EventKind {
	if bytes.Contains(kv, []byte(h.Transfer)) {
		return dispatch.EvPrefillUsable
	}
	return dispatch.EvPrefillUnusable
}
