package connector

import (
	"bytes"
	"fmt"

	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
)

// push is stock vLLM's NixlPushConnector. Decode registers its blocks with prefill, and prefill writes them when it has finished. Decode
// holds registered blocks until they are written, even if its request has ended. So once decode was asked, the prefill leg continues to
// its end, and one that failed is asked again.
type push struct{}

var pushTraits = Traits{
	Name: NamePush, Mode: dispatch.Together, drains: true, Handshakes: true, Writes: true,
	Stock: &StockTraits{TransferMode: "push", Needs: "want vLLM 0.24.0 or newer with NixlPushConnector as kv_producer"},
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
		case e.Decode == dispatch.LegAsked && (e.Prefill.Failed() || e.Prefill == dispatch.LegRejected): // a decode engine whose leg ends before it has begun may never report its blocks
			out = append(out, dispatch.Action{Do: dispatch.DoDisownDecode})
		case e.Decode.Open():
			out = append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
		}
		switch e.Prefill {
		case dispatch.LegAsked:
			return append(out, dispatch.Action{Do: dispatch.DoFinishPrefill})
		case dispatch.LegMoved: // the run that decode registered with has ended, and no leg takes what the new run holds
			return append(out, dispatch.Action{Do: dispatch.DoFreePrefill}, dispatch.Action{Do: dispatch.DoAbandon})
		case dispatch.LegNoHandOff: // what decode registered is never written, however often prefill is asked
			return append(out, dispatch.Action{Do: dispatch.DoAbandon})
		case dispatch.LegRejected:
			if e.Decode == dispatch.LegAnswered { // tokens came without prefill's blocks
				return out
			}
			return append(out, dispatch.Action{Do: dispatch.DoAbandon}) // what decode registered is never written: prefill rejects it again
		}
		if e.Decode == dispatch.LegAnswered { // tokens came, so the blocks did
			return out
		}
		return append(out, dispatch.Action{Do: dispatch.DoFreeDecode}) // even if it has answered: its write may have been lost
	}
	// Decode holds nothing.
	switch e.Prefill {
	case dispatch.LegAsked:
		return append(out, dispatch.Action{Do: dispatch.DoClosePrefill})
	case dispatch.LegAnswered, dispatch.LegMoved:
		if e.Decode == dispatch.LegBroken { // it may have used the reference, which works once
			return append(out, dispatch.Action{Do: dispatch.DoFreeTaken})
		}
		return append(out, dispatch.Action{Do: dispatch.DoFreePrefill})
	}
	return out
}

// PrefillMembers do not name the decode engine: it registers with prefill.
func (push) PrefillMembers(dst []byte, h *Handoff) []byte {
	dst = append(dst, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`...)
	dst = append(dst, h.Transfer...)
	return append(dst, `"}`...)
}

// DecodeMembers name the prefill engine and both ids of the transfer.
func (push) DecodeMembers(dst []byte, h *Handoff) []byte {
	dst = append(dst, h.Endpoint.pushMembers...) // remote_engine_id, remote_host and the like, up to the opening quote of remote_request_id
	dst = h.Shape.AppendEngineRequest(dst, h.Request)
	dst = append(dst, `","transfer_id":"`...)
	dst = append(dst, h.Transfer...)
	return append(dst, `"}`...)
}

// pushMembersOf writes the part of DecodeMembers that is the same for every transfer of a prefill engine.
func pushMembersOf(c *PrefillEndpoint) []byte {
	dst := append([]byte(`"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":`), c.Quoted...)
	dst = openai.AppendString(append(dst, `,"remote_host":`...), c.Host)
	return fmt.Appendf(dst, `,"remote_port":%d,"tp_size":%d,"pp_size":%d,"dcp_size":%d,"remote_request_id":"`, c.Port, c.TP, c.PP, c.DCP)
}

// Accept reports whether prefill's answer names the run that decode's request names.
func (push) Accept(h *Handoff, kv []byte) dispatch.EventKind {
	if h.Endpoint != nil && bytes.Contains(kv, h.Endpoint.Quoted) {
		return dispatch.EvPrefillUsable
	}
	if _, ok := ParseEndpoint(kv); ok {
		return dispatch.EvPrefillMoved
	}
	return dispatch.EvPrefillUnusable
}
