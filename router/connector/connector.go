// Package connector has the engine protocols. Each defines how its legs follow each other, what they carry and how they end. Its Traits
// say everything else. Connectors are pure: they send nothing and know no engine. A new one is a file here and an entry in All.
package connector

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net"
	"strconv"

	"pdrouter/internal/field"
	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
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
	drains          bool
	RequiresSplit   bool // a decode engine serves no request alone
	Handshakes      bool // two engines shake hands before they hand anything over
	EitherRole      bool // an engine may be prefill of one request and decode of another
	Publishes       bool // engines publish records with the gateway, and have control routes
	Cancels         bool // both engines can be told at any time that a transfer is over
	Writes          bool // prefill writes into decode's blocks, and no engine tells the gateway when
	Reads           bool // decode reads prefill's blocks, which its answer names
	TakesTokenIDs   bool // decode takes the prompt's token ids, which prefill has answered, in place of the messages
	Meets           bool // the legs meet at prefill's bootstrap server; prefill's answer has no params
	UnwrappedErrors bool // an error may have no wrapper, and the healthy engine of a pair may report a failed transfer

	Stock *StockTraits // of engines of stock vLLM; nil of others
}

// StockTraits are those of engines that publish their endpoint on a side channel and hold KV until it is taken or a lease ends.
type StockTraits struct {
	TransferMode string // the engines' own name for it
	Needs        string // the versions and connectors of vLLM that hand off with it
}

// Handoff is what the two legs of one attempt share. Its ids are new at every attempt: engines
// match the legs by them.
type Handoff struct {
	Request   string // the engine-side X-Request-Id
	Transfer  string // 32 hexadecimal digits
	Shape     openai.Shape
	Bootstrap Bootstrap // connector sglang
	// Prefill and decode are the runs of the engines that publish their own generation (connector kvplane).
	Prefill, Decode metadata.Incarnation
	Endpoint        *PrefillEndpoint // of the prefill engine, if it is a stock one
	KVParams        []byte           // what prefill answered; nil until then
	ValidMS         int64            // how long the transfer may take
	// Ticket is the gateway's, which both legs of connector kvplane carry; nil without a key to sign it.
	Ticket []byte
}

// AppendTokenIDs adds the prompt's array of token ids, as prefill wrote it, to the members of a decode leg of a chat. The connector
// TakesTokenIDs, so its members end with kv_transfer_params, and these have a member at least. Since vllm-project/vllm#48145 (0.27.0) a decode
// engine takes the ids in place of the messages; one before that ignores them.
func AppendTokenIDs(members, ids []byte) []byte {
	members = append(members[:len(members)-1], `,"prompt_token_ids":`...) // without the closing brace
	return append(append(members, ids...), '}')
}

// Draw gives both legs new ids.
func (h *Handoff) Draw() {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	var t [64]byte
	for i, c := range b {
		binary.LittleEndian.PutUint16(t[2*i:], hexPairs[c])
	}
	s := string(t[:])
	h.Transfer, h.Request = s[:32], s[32:]
}

// hexPairs are the two digits of each byte, the first one low: every attempt writes 32 bytes so.
var hexPairs = func() (of [256]uint16) {
	const digits = "0123456789abcdef"
	for c := range of {
		of[c] = uint16(digits[c>>4]) | uint16(digits[c&15])<<8
	}
	return of
}()

// WithoutHandoff returns an engine's refusal without the members of the hand-off, at any depth. It reports false if the rest may still
// contain data of the hand-off. Then the body must not be sent to a client.
func (h *Handoff) WithoutHandoff(body []byte) ([]byte, bool) {
	out, ok := answer.StripTransferParams(nil, body)
	if !ok {
		return nil, false
	}
	c := h.Endpoint
	if h.KVParams != nil {
		if answered, ok := ParseEndpoint(h.KVParams); ok {
			c = answered
		}
	}
	secrets := [...]string{h.Transfer, string(h.Ticket), "", "", "", ""}
	if c != nil {
		secrets[2], secrets[3] = c.EngineID, hostPort(c.Host, c.Port)
	}
	if m := h.Bootstrap; m.host != "" {
		secrets[4], secrets[5] = hostPort(m.host, m.port), strconv.FormatUint(m.room, 10)
	}
	for _, s := range secrets {
		if s != "" && bytes.Contains(out, []byte(s)) {
			return nil, false
		}
	}
	return out, true
}

// hostPort is a host and a port as messages have them; "" of no host.
func hostPort(host string, port int) string {
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
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
	return field.OneOf(names)
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
