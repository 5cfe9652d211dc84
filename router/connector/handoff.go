package connector

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net"
	"strconv"

	"pdrouter/metadata"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

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

// hexPairs are the two digits of each byte, the first one low: every dispatch writes 32 bytes so.
var hexPairs = func() (of [256]uint16) {
	const digits = "0123456789abcdef"
	for c := range of {
		of[c] = uint16(digits[c>>4]) | uint16(digits[c&15])<<8
	}
	return of
}()

// PrefillEndpoint is where decode engines find a stock prefill engine. It changes at every start of the engine.
type PrefillEndpoint struct {
	EngineID string
	Host     string
	Port     int
	TP       int
	PP       int
	DCP      int
	Mode     string // "push" or "pull"; "" of engines that do not say

	Quoted      []byte // the engine id as it stands in JSON
	pushMembers []byte // see push.DecodeMembers
}

// written fills in the fields that hold JSON.
func (c PrefillEndpoint) written() *PrefillEndpoint {
	c.Quoted = openai.AppendString(nil, c.EngineID)
	c.pushMembers = pushMembersOf(&c)
	return &c
}

// ParseEndpoint reads where prefill is from the kv_transfer_params of its answer.
func ParseEndpoint(kv []byte) (*PrefillEndpoint, bool) {
	p, ok := ParseKVParams(kv)
	if !ok || !p.located() {
		return nil, false
	}
	return PrefillEndpoint{
		EngineID: string(jsonscan.Unescape(nil, p.engine)), Host: string(jsonscan.Unescape(nil, p.host)), Port: p.port, TP: p.tp, PP: p.pp, DCP: p.dcp,
		Mode: string(jsonscan.Unescape(nil, p.mode)),
	}.written(), true
}

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

// Moves reports whether the engine moves KV in the mode of the connector, or has not said its mode.
func (c *PrefillEndpoint) Moves(conn Connector) bool {
	t := conn.Traits().Stock
	return t == nil || c.Mode == "" || c.Mode == t.TransferMode
}
