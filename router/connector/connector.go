// Package connector has the engine protocols. Each defines how its legs follow each other, what they carry and how they end. Its Traits
// say everything else. Connectors are pure: they send nothing and know no engine. A new one is a file here and an entry in All.
package connector

import (
	"strings"

	"pdrouter/router/dispatch"
)

// Connector is one engine protocol: how its legs follow each other, how they end, and what is written into each. Its methods are pure.
type Connector interface {
	// Traits returns the same value at each call. It must not be changed.
	Traits() *Traits
	dispatch.Ender
	// PrefillMembers and DecodeMembers append the JSON members that the hand-off adds to the body of either leg, such as
	// "kv_transfer_params":{...}, without a comma at either end.
	PrefillMembers(dst []byte, h *Handoff) []byte
	DecodeMembers(dst []byte, h *Handoff) []byte
	// Accept says what prefill's kv_transfer_params mean for the attempt: EvPrefillUsable, EvPrefillMoved or
	// EvPrefillUnusable.
	Accept(h *Handoff, kv []byte) dispatch.EventKind
}

// Traits are the properties of a connector. Code outside this package asks for a property, not for a connector's name.
type Traits struct {
	Name string
	Mode dispatch.Mode // how the legs of a split request follow each other

	// drains: ending the legs of a split request before decode's first token leaks KV. So a request without a client drains.
	drains        bool
	RequiresSplit bool // a decode engine serves no request alone
	Handshakes    bool // two engines shake hands before they hand anything over
	Publishes     bool // engines publish records with the gateway, and have control routes
	Cancels       bool // both engines can be told at any time that a transfer is over
	Writes        bool // prefill writes into decode's blocks, and no engine tells the gateway when
	Reads         bool // decode reads prefill's blocks, which its answer names
	Meets         bool // the legs meet at prefill's bootstrap server; prefill's answer has no params
	BareErrors    bool // an error may have no wrapper, and the healthy engine of a pair may report a failed transfer

	Stock *StockTraits // of engines of stock vLLM; nil of others
}

// StockTraits are those of engines that publish their endpoint on a side channel and hold KV until it is taken or a lease ends.
type StockTraits struct {
	TransferMode string // the engines' own name for it
	Needs        string // the versions and connectors of vLLM that hand off with it
}

// Default is the connector of a model that names none.
const Default = NameNone

// NewDispatch returns the life of a request to engines of that connector.
func NewDispatch(c Connector, attempts int) dispatch.Dispatch {
	return dispatch.New(c, c.Traits().Mode, c.Traits().drains, attempts)
}

// Named returns the connector of a model's configuration, which was validated.
func Named(name string) Connector {
	if c, ok := Find(name); ok {
		return c
	}
	return none{}
}

// All returns every connector. A new one is added here.
func All() []Connector { return []Connector{push{}, pull{}, plane{}, sglang{}, none{}} }

// Names lists their names, for messages.
func Names() string {
	var names []string
	for _, c := range All() {
		names = append(names, c.Traits().Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func Find(name string) (Connector, bool) {
	for _, c := range All() {
		if c.Traits().Name == name {
			return c, true
		}
	}
	return nil, false
}

// none serves every request with one engine.
type none struct{}

var noneTraits = Traits{Name: NameNone, Mode: dispatch.Alone}

func (none) Traits() *Traits { return &noneTraits }

// End is never asked: there is no prefill leg whose end could matter to decode's.
func (none) End(_ dispatch.Ending, out []dispatch.Action) []dispatch.Action { return out }

func (none) PrefillMembers(dst []byte, _ *Handoff) []byte { return dst }
func (none) DecodeMembers(dst []byte, _ *Handoff) []byte  { return dst }
func (none) Accept(*Handoff, []byte) dispatch.EventKind   { return dispatch.EvPrefillUnusable }

// The connectors a model may name: who moves the KV blocks from prefill to decode.
const (
	NamePush    = "vllm-nixl-push" // stock vLLM's NixlPushConnector: both legs at once
	NamePull    = "vllm-nixl-pull" // stock vLLM's NixlConnector: prefill, then decode
	NameKVPlane = "kvplane"        // pdrouter's own data plane: both legs at once
	NameSGLang  = "sglang"         // stock SGLang: both legs at once
	NameNone    = "none"           // aggregated engines: nothing is moved
)
