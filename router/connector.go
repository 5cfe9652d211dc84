package router

import (
	"strings"

	"pdrouter/router/dispatch"
)

// connector is what a hand-over needs of the router: how its legs follow each other, how they end, and what is
// written into each. Its methods are pure.
type connector interface {
	// traits are the same at each call, and are not changed.
	traits() *traits
	dispatch.Ender
	// prefillParams and decodeParams append the kv_transfer_params of either leg.
	prefillParams(dst []byte, h *handoff) []byte
	decodeParams(dst []byte, h *handoff) []byte
	// accept says what prefill's kv_transfer_params mean for the attempt: EvPrefillUsable, EvPrefillMoved or
	// EvPrefillUnusable.
	accept(h *handoff, kv []byte) dispatch.EventKind
}

// traits are what a connector says of itself, so that nobody else has to know which one it is.
type traits struct {
	name string
	mode dispatch.Mode // how the legs of a split request follow each other

	// lingers: a split request whose client has left, or has waited for too long, leaves KV behind if its legs are ended before decode's
	// first token.
	lingers       bool
	requiresSplit bool // a decode engine serves no request alone
	handshakes    bool // two engines shake hands before they hand anything over
	publishes     bool // engines publish records with the gateway, and have control routes
	cancels       bool // both engines can be told at any time that a transfer is over
	writes        bool // prefill writes into decode's blocks, and no engine tells the gateway when
	reads         bool // decode reads prefill's blocks, which its answer names
	meets         bool // the legs meet at prefill's bootstrap server; prefill's answer has no params
	bareErrors    bool // an engine's error may be a bare string, and a failed transfer may be told by the engine that is well

	stock *stockTraits // of engines of stock vLLM; nil of others
}

// stockTraits are those of engines that tell their coordinates on a side channel and hold KV until somebody takes it or a lease ends.
type stockTraits struct {
	kvMode string // what the engines themselves call it
	needs  string // the versions and connectors of vLLM that hand off with it
}

// newLife returns the life of a request to engines of that connector.
func newLife(c connector, attempts int) dispatch.Dispatch {
	return dispatch.New(c, c.traits().mode, c.traits().lingers, attempts)
}

// connectorNamed returns the connector of a model's configuration, which was validated.
func connectorNamed(name string) connector {
	if c, ok := findConnector(name); ok {
		return c
	}
	return none{}
}

// connectors lists all there are. A new one is entered here.
func connectors() []connector { return []connector{push{}, pull{}, plane{}, sglang{}, none{}} }

// connectorNames lists their names, for messages.
func connectorNames() string {
	var names []string
	for _, c := range connectors() {
		names = append(names, c.traits().name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func findConnector(name string) (connector, bool) {
	for _, c := range connectors() {
		if c.traits().name == name {
			return c, true
		}
	}
	return nil, false
}

// none serves every request with one engine.
type none struct{}

var noneTraits = traits{name: ConnectorNone, mode: dispatch.Alone}

func (none) traits() *traits { return &noneTraits }

func (none) End(e dispatch.Ending, out []dispatch.Action) []dispatch.Action {
	if e.Decode.Open() {
		out = append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
	}
	return out
}

// The connectors a model may name: who moves the KV blocks from prefill to decode.
const (
	ConnectorPush    = "vllm-nixl-push" // stock vLLM's NixlPushConnector: both legs at once
	ConnectorPull    = "vllm-nixl-pull" // stock vLLM's NixlConnector: prefill, then decode
	ConnectorKVPlane = "kvplane"        // pdrouter's own data plane: both legs at once
	ConnectorSGLang  = "sglang"         // stock SGLang: both legs at once, which meet in a room
	ConnectorNone    = "none"           // aggregated engines: nothing is moved
)
