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
	Pins                  bool // do_remote_decode: decode keeps the blocks of prompt and answer for a prefill engine
	Handed                Handed
}

// Handed is what an engine says of the KV that another can read. It is zero where the engine does not say.
type Handed struct {
	Tokens int // of the prompt whose KV is there
	Groups int // of layers that have blocks of their own
	Blocks int // of the first group; -1 if the blocks are no list of lists
}

// ParseHanded reads what a prefill engine says of the KV that decode can read. It is zero with decode
// context parallelism, where a block has another number of tokens.
func ParseHanded(kv []byte) Handed {
	if p, ok := ParseKVParams(kv); ok && p.dcp == 1 {
		return p.Handed
	}
	return Handed{}
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
		case "do_remote_decode":
			p.Pins = s.Peek() == 't'
			s.Value(1)
		case "do_remote_prefill":
			p.remote = s.Peek() == 't'
			if !p.remote && s.Peek() != 'f' {
				s.Fail("want a boolean")
			}
			s.Value(1)
		case "remote_block_ids":
			p.blocks = s.Peek() == '['
			readBlocks(&s, &p.Handed)
		case "remote_num_tokens":
			var ok bool
			if p.Handed.Tokens, ok = s.Integer(); !ok {
				s.Value(1)
			}
		default:
			s.Value(1)
		}
	}
	return p, ok && s.End()
}

// readBlocks counts lists of blocks, and the blocks of the first one.
func readBlocks(s *jsonscan.Scanner, h *Handed) {
	if s.Peek() != '[' {
		s.Value(1)
		return
	}
	n := 0
	for ok := s.Array(2); ok && s.Element(&n); {
		if s.Peek() != '[' {
			h.Blocks = -1
			s.Value(2)
			continue
		}
		h.Groups++
		blocks := 0
		for in := s.Array(3); in && s.Element(&blocks); {
			s.Value(3)
		}
		if n == 1 {
			h.Blocks = blocks
		}
	}
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
