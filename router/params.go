package router

// handed is what a stock prefill engine's kv_transfer_params say, read in one pass. Its bytes lie in the answer.
type handed struct {
	engine, host, request []byte // escapes as written; empty if absent or null
	mode                  []byte // transfer_mode, as the others
	port, tp, pp, dcp     int
	remote                bool // do_remote_prefill
	blocks                bool // remote_block_ids is a list
}

// parseHanded reads the params. It reports false if they are no JSON object, or if a field that is read here is of
// another kind than engines send. Null stands for absent.
func parseHanded(kv []byte) (handed, bool) {
	p := handed{tp: 1, pp: 1, dcp: 1}
	s := scanner{b: kv, maxDepth: maxAnswerDepth}
	s.space()
	m, ok := s.object(1)
	for ok && s.member(&m) {
		if s.peek() == 'n' {
			s.value(1)
			continue
		}
		switch string(m.key) {
		case "remote_engine_id":
			p.engine, _, _ = s.str()
		case "remote_host":
			p.host, _, _ = s.str()
		case "remote_request_id":
			p.request, _, _ = s.str()
		case "transfer_mode":
			p.mode, _, _ = s.str()
		case "remote_port":
			s.whole(&p.port)
		case "tp_size":
			s.whole(&p.tp)
		case "pp_size":
			s.whole(&p.pp)
		case "dcp_size":
			s.whole(&p.dcp)
		case "do_remote_prefill":
			p.remote = s.peek() == 't'
			if !p.remote && s.peek() != 'f' {
				s.fail("want a boolean")
			}
			s.value(1)
		case "remote_block_ids":
			p.blocks = s.peek() == '['
			s.value(1)
		default:
			s.value(1)
		}
	}
	return p, ok && s.end()
}

// whole reads a number that must be a whole one.
func (s *scanner) whole(n *int) {
	v, ok := s.integer()
	if !ok {
		s.fail("want a whole number")
		return
	}
	*n = v
}

// located reports whether the params name an engine that can be reached.
func (p *handed) located() bool {
	return len(p.engine) > 0 && len(p.host) > 0 && p.port > 0 && p.tp >= 1 && p.pp >= 1 && p.dcp >= 1
}
