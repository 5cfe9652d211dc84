package router

// connector is what a hand-over needs of the router: how its legs follow each other, how they end, and what is
// written into each. Its methods are pure.
type connector interface {
	name() string
	// mode says how the legs of a split request follow each other.
	mode() mode
	// lingers says that a split request whose client has left, or has waited for too long, leaves KV behind if its legs are ended
	// before decode's first token.
	lingers() bool
	// end appends what ends both legs of an attempt, in order.
	end(e ending, out []action) []action
	// prefillParams and decodeParams append the kv_transfer_params of either leg.
	prefillParams(dst []byte, h *handoff) []byte
	decodeParams(dst []byte, h *handoff) []byte
	// accept says what prefill's kv_transfer_params mean for the attempt: evPrefillUsable, evPrefillMoved or
	// evPrefillUnusable.
	accept(h *handoff, kv []byte) kind
}

// ending is how the legs of an attempt stood when it ended.
type ending struct {
	prefill, decode legState
}

// connectorNamed returns the connector of a model's configuration, which was validated.
func connectorNamed(name string) connector {
	switch name {
	case ConnectorPush:
		return push{}
	case ConnectorPull:
		return pull{}
	case ConnectorSGLang:
		return sglang{}
	case ConnectorKVPlane:
		return plane{}
	}
	return none{}
}

// none serves every request with one engine.
type none struct{}

func (none) name() string  { return ConnectorNone }
func (none) mode() mode    { return alone }
func (none) lingers() bool { return false }

func (none) end(e ending, out []action) []action {
	if e.decode.open() {
		out = append(out, action{do: doCloseDecode})
	}
	return out
}
