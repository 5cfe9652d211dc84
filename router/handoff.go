package router

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"

	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/openai/jsonscan"
)

// handoff is what the two legs of one attempt share. Its ids are new at every dispatch, retries too: engines
// match the legs by them.
type handoff struct {
	request  string // the engine-side X-Request-Id
	transfer string // 32 hexadecimal digits
	shape    openai.Shape
	meeting  meeting // connector sglang
	// prefill and decode are the runs of the engines that publish their own generation (connector kvplane).
	prefill, decode metadata.Incarnation
	coord           *coordinates // of the prefill engine, if it is a stock one
	kv              []byte       // what prefill answered; nil until then
	validMS         int64        // how long the transfer may take
	// prefillTicket and decodeTicket are what the engines of connector kvplane want to see; nil without a key to sign them.
	prefillTicket, decodeTicket []byte
}

// name draws new ids.
func (h *handoff) draw() {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	var t [64]byte
	for i, c := range b {
		binary.LittleEndian.PutUint16(t[2*i:], hexPairs[c])
	}
	s := string(t[:])
	h.transfer, h.request = s[:32], s[32:]
}

// hexPairs are the two digits of each byte, the first one low: every dispatch writes 32 bytes so.
var hexPairs = func() (of [256]uint16) {
	const digits = "0123456789abcdef"
	for c := range of {
		of[c] = uint16(digits[c>>4]) | uint16(digits[c&15])<<8
	}
	return of
}()

// coordinates are where decode engines find a stock prefill engine. They change at every start of the engine.
type coordinates struct {
	EngineID string
	Host     string
	Port     int
	TP       int
	PP       int
	DCP      int
	Mode     string // "push" or "pull"; "" of engines that do not say

	quoted []byte // the engine id as it stands in JSON
	params []byte // what decode is told of the engine, whatever the transfer
}

// written fills in what stands in JSON.
func (c coordinates) written() *coordinates {
	c.quoted = openai.AppendString(nil, c.EngineID)
	dst := append(append([]byte(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":`), c.quoted...), `,"remote_host":`...)
	dst = openai.AppendString(dst, c.Host)
	c.params = fmt.Appendf(dst, `,"remote_port":%d,"tp_size":%d,"pp_size":%d,"dcp_size":%d,"remote_request_id":"`, c.Port, c.TP, c.PP, c.DCP)
	return &c
}

// parseCoordinates reads them from the kv_transfer_params of a prefill answer.
func parseCoordinates(kv []byte) (*coordinates, bool) {
	p, ok := parseHanded(kv)
	if !ok || !p.located() {
		return nil, false
	}
	return coordinates{
		EngineID: string(jsonscan.Unescape(nil, p.engine)), Host: string(jsonscan.Unescape(nil, p.host)), Port: p.port, TP: p.tp, PP: p.pp, DCP: p.dcp,
		Mode: string(jsonscan.Unescape(nil, p.mode)),
	}.written(), true
}

// prefillParams of stock vLLM, push: who takes the blocks is said by decode.
func (push) prefillParams(dst []byte, h *handoff) []byte {
	dst = append(dst, `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`...)
	dst = append(dst, h.transfer...)
	return append(dst, `"}`...)
}

func (push) decodeParams(dst []byte, h *handoff) []byte {
	dst = append(dst, h.coord.params...)
	dst = h.shape.AppendEngineRequest(dst, h.request)
	dst = append(dst, `","transfer_id":"`...)
	dst = append(dst, h.transfer...)
	return append(dst, `"}`...)
}

// accept says whether prefill's answer names the engine that decode was told of.
func (push) accept(h *handoff, kv []byte) dispatch.EventKind {
	if h.coord != nil && bytes.Contains(kv, h.coord.quoted) {
		return dispatch.EvPrefillUsable
	}
	if _, ok := parseCoordinates(kv); ok {
		return dispatch.EvPrefillMoved
	}
	return dispatch.EvPrefillUnusable
}

func (pull) prefillParams(dst []byte, h *handoff) []byte {
	return append(dst, `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,`+
		`"remote_block_ids":null,"remote_host":null,"remote_port":null}`...)
}

// decodeParams are what prefill answered, to the byte.
func (pull) decodeParams(dst []byte, h *handoff) []byte { return append(dst, h.kv...) }

// accept refuses params with which a decode engine could not read: a missing one has been seen to end engines.
func (pull) accept(h *handoff, kv []byte) dispatch.EventKind {
	p, ok := parseHanded(kv)
	if !ok || !p.located() || !p.remote || !p.blocks || len(p.request) == 0 {
		return dispatch.EvPrefillUnusable
	}
	return dispatch.EvPrefillUsable
}

func (plane) prefillParams(dst []byte, h *handoff) []byte {
	return h.planeParams(dst, `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`, h.decode, h.prefillTicket)
}

func (plane) decodeParams(dst []byte, h *handoff) []byte {
	return h.planeParams(dst, `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"`, h.prefill, h.decodeTicket)
}

func (h *handoff) planeParams(dst []byte, head string, peer metadata.Incarnation, ticket []byte) []byte {
	dst = append(dst, head...)
	dst = append(dst, h.transfer...)
	dst = append(dst, `","peer":{"engine":`...)
	dst = openai.AppendString(dst, peer.Engine)
	dst = append(dst, `,"generation":`...)
	dst = strconv.AppendUint(dst, peer.Generation, 10)
	dst = append(dst, `},"valid_ms":`...)
	dst = strconv.AppendInt(dst, h.validMS, 10)
	if ticket != nil {
		dst = append(dst, `,"ticket":"`...)
		dst = append(append(dst, ticket...), '"') // base64url
	}
	return append(dst, '}')
}

// accept wants the transfer's own id back.
func (plane) accept(h *handoff, kv []byte) dispatch.EventKind {
	if bytes.Contains(kv, []byte(h.transfer)) {
		return dispatch.EvPrefillUsable
	}
	return dispatch.EvPrefillUnusable
}

func (none) prefillParams(dst []byte, _ *handoff) []byte { return dst }
func (none) decodeParams(dst []byte, _ *handoff) []byte  { return dst }
func (none) accept(*handoff, []byte) dispatch.EventKind  { return dispatch.EvPrefillUnusable }

// withoutMeeting returns an engine's refusal without the members that tell of the hand-off, at any depth. It reports false if
// what is left may tell of it still: then it is nothing for clients.
func (h *handoff) withoutMeeting(body []byte) ([]byte, bool) {
	out, ok := openai.StripTransferParams(nil, body)
	if !ok {
		return nil, false
	}
	c := h.coord
	if h.kv != nil {
		if told, ok := parseCoordinates(h.kv); ok {
			c = told
		}
	}
	secrets := [...]string{h.transfer, string(h.prefillTicket), string(h.decodeTicket), "", "", "", ""}
	if c != nil {
		secrets[3], secrets[4] = c.EngineID, place(c.Host, c.Port)
	}
	if m := h.meeting; m.host != "" {
		secrets[5], secrets[6] = place(m.host, m.port), strconv.FormatUint(m.room, 10)
	}
	for _, s := range secrets {
		if s != "" && bytes.Contains(out, []byte(s)) {
			return nil, false
		}
	}
	return out, true
}

// place is a host and a port as messages have them; "" of no host.
func place(host string, port int) string {
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// moves reports whether an engine that has said how it moves KV does so as the connector wants.
func (c *coordinates) moves(conn connector) bool {
	t := conn.traits().stock
	return t == nil || c.Mode == "" || c.Mode == t.kvMode
}
