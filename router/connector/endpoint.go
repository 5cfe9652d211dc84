package connector

import (
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

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

// Moves reports whether the engine moves KV in the mode of the connector, or has not said its mode.
func (c *PrefillEndpoint) Moves(conn Connector) bool {
	t := conn.Traits().Stock
	return t == nil || c.Mode == "" || c.Mode == t.TransferMode
}

// KVParams is what a stock prefill engine's kv_transfer_params say, read in one pass. Its bytes lie in the answer.
type KVParams struct {
	engine, host, Request []byte // escapes as written; empty if absent or null
	mode                  []byte // transfer_mode, as the others
	port, tp, pp, dcp     int
	remote                bool // do_remote_prefill
	blocks                bool // remote_block_ids is a list
}

// ParseKVParams reads the params. It reports false if they are no JSON object, or if a field that is read here is of
// another kind than engines send. Null stands for absent.
func ParseKVParams(kv []byte) (KVParams, bool) {
	p := KVParams{tp: 1, pp: 1, dcp: 1}
	s := jsonscan.Scanner{Bytes: kv, MaxDepth: answer.MaxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		if s.Peek() == 'n' {
			s.Value(1)
			continue
		}
		switch string(m.Key) {
		case "remote_engine_id":
			p.engine, _, _ = s.Str()
		case "remote_host":
			p.host, _, _ = s.Str()
		case "remote_request_id":
			p.Request, _, _ = s.Str()
		case "transfer_mode":
			p.mode, _, _ = s.Str()
		case "remote_port":
			readWholeNumber(&s, &p.port)
		case "tp_size":
			readWholeNumber(&s, &p.tp)
		case "pp_size":
			readWholeNumber(&s, &p.pp)
		case "dcp_size":
			readWholeNumber(&s, &p.dcp)
		case "do_remote_prefill":
			p.remote = s.Peek() == 't'
			if !p.remote && s.Peek() != 'f' {
				s.Fail("want a boolean")
			}
			s.Value(1)
		case "remote_block_ids":
			p.blocks = s.Peek() == '['
			s.Value(1)
		default:
			s.Value(1)
		}
	}
	return p, ok && s.End()
}

// readWholeNumber reads a number that must be a whole one.
func readWholeNumber(s *jsonscan.Scanner, n *int) {
	v, ok := s.Integer()
	if !ok {
		s.Fail("want a whole number")
		return
	}
	*n = v
}

// located reports whether the params name an engine that can be reached.
func (p *KVParams) located() bool {
	return len(p.engine) > 0 && len(p.host) > 0 && p.port > 0 && p.tp >= 1 && p.pp >= 1 && p.dcp >= 1
}
