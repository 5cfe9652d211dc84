package router

// plane is pdrouter's own data plane. Both sides know the transfer by its id and take a cancel at any time, so
// whatever the end, both are told at once and both legs are closed.
type plane struct{}

var planeTraits = traits{name: ConnectorKVPlane, mode: together, handshakes: true, publishes: true, cancels: true}

func (plane) traits() *traits { return &planeTraits }

func (plane) end(e ending, out []action) []action {
	if e.decode == legWhole {
		if e.prefill == legAsked {
			out = append(out, action{do: doFinishPrefill})
		}
		return out
	}
	if e.prefill == legIdle && e.decode == legIdle {
		return out
	}
	out = append(out, action{do: doCancel})
	if e.prefill == legAsked {
		out = append(out, action{do: doClosePrefill})
	}
	if e.decode.open() {
		out = append(out, action{do: doCloseDecode})
	}
	return out
}
