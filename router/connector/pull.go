package connector

import "pdrouter/router/dispatch"

// pull is stock vLLM's NixlConnector. Decode reads the blocks that prefill's answer names, and prefill keeps them until they are read or
// the lease ends. So a decode leg that was asked runs to its first event if there is time. If none was asked, a decode leg of one token
// takes its place.
type pull struct{}

var pullTraits = Traits{
	Name: NamePull, Mode: dispatch.InTurn, drains: true, Handshakes: true, EitherRole: true, Reads: true, TakesTokenIDs: true,
	Stock: &StockTraits{TransferMode: "pull", Needs: "want vLLM 0.13.0 or newer with NixlConnector"},
}

func (pull) Traits() *Traits { return &pullTraits }

func (pull) End(e dispatch.Ending, out []dispatch.Action) []dispatch.Action {
	switch e.Decode {
	case dispatch.LegAsked:
		return append(out, dispatch.Action{Do: dispatch.DoCloseDecode}, dispatch.Action{Do: dispatch.DoFreeTaken})
	case dispatch.LegAnswered:
		return append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
	case dispatch.LegWhole:
		return out
	case dispatch.LegBroken, dispatch.LegLost: // it may have read: the reference is used
		return append(out, dispatch.Action{Do: dispatch.DoFreeTaken})
	}
	switch e.Prefill {
	case dispatch.LegAsked:
		return append(out, dispatch.Action{Do: dispatch.DoClosePrefill})
	case dispatch.LegAnswered:
		return append(out, dispatch.Action{Do: dispatch.DoFreePrefill})
	case dispatch.LegBroken: // it may have finished, but the answer did not say what it holds
		return append(out, dispatch.Action{Do: dispatch.DoCountLeak})
	}
	return out
}

func (pull) PrefillMembers(dst []byte, h *Handoff) []byte {
	return append(dst, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,`+
		`"remote_block_ids":null,"remote_host":null,"remote_port":null}`...)
}

// DecodeMembers are the kv_transfer_params that prefill answered, to the byte.
func (pull) DecodeMembers(dst []byte, h *Handoff) []byte {
	return append(append(dst, `"kv_transfer_params":`...), h.KVParams...)
}

// Accept refuses params without a field that decode needs to read: a missing field can crash the decode engine.
func (pull) Accept(h *Handoff, kv []byte) dispatch.EventKind {
	p, ok := ParseKVParams(kv)
	if !ok || !p.located() || !p.remote || !p.blocks || len(p.Request) == 0 {
		return dispatch.EvPrefillUnusable
	}
	return dispatch.EvPrefillUsable
}
