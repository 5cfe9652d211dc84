package refengine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pdrouter/metadata"
)

// Pull has engines of one process hand KV over in the way of stock vLLM's NixlConnector, by kv_transfer_params. A request with do_remote_decode
// keeps the blocks of its finished prompt, and its answer says where they are. A request with do_remote_prefill and what that answer said reads
// them. As with vLLM, the reader does not look at whose tokens the blocks hold, so blocks of another prompt make a wrong answer; it reads the
// blocks that it lacks from the end of the list, and computes the last token of its prompt itself; and what nobody reads is kept until a lease
// ends, or until a notification says that it was read. With Config.Bidirectional the engine that has read a prompt keeps prompt and answer in the
// same way, for longer, and an engine that exports may read them first. Make one with new, and give it to all the engines. It is safe for
// concurrent use.
//
// It answers also for what the engines' side channels and NIXL agents would: see First, All and Notify.
type Pull struct {
	mu      sync.Mutex
	engines map[string]*Engine // by engine id
	joined  int                // how many ever have
}

// Remote is where an import leg finds the KV of its prompt.
type Remote struct {
	Engine, Name string
	Blocks       []int32
	Tokens       int // an export leg: that the blocks are of
}

// export is a finished prompt that another engine may read.
type export struct {
	blocks []int32
	late   *time.Timer
}

// remoteBody is kv_transfer_params of an export's answer, and of an import.
type remoteBody struct {
	Decode  bool      `json:"do_remote_decode"`
	Prefill bool      `json:"do_remote_prefill"`
	Engine  *string   `json:"remote_engine_id"`
	Name    *string   `json:"remote_request_id"`
	Host    *string   `json:"remote_host"`
	Port    *int      `json:"remote_port"`
	Blocks  [][]int32 `json:"remote_block_ids"` // of the one cache group
	Tokens  int       `json:"remote_num_tokens,omitempty"`
	TP      int       `json:"tp_size,omitempty"`
	Mode    string    `json:"transfer_mode,omitempty"`
	Cached  int       `json:"remote_prefill_cached_tokens,omitempty"`
}

// byPlane reports whether the leg is one of a hand-off by the plane.
func (l Leg) byPlane() bool { return l == PrefillLeg || l == DecodeLeg }

// parsePull makes the call a leg of a hand-off in stock vLLM's way, if it says so.
func (c *call) parsePull(raw json.RawMessage) *apiError {
	const param = "kv_transfer_params"
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var p remoteBody
	if err := json.Unmarshal(raw, &p); err != nil {
		return badRequest(param, "kv_transfer_params: %.200s", err)
	}
	switch {
	case p.Decode == p.Prefill:
		return nil // the prompt's ids alone: see givenPrompt
	case c.n != 1 || len(c.prompts) != 1:
		return badRequest(param, "kv_transfer_params: one hand-off serves one prompt and one answer")
	case p.Decode:
		c.req.Leg = ExportLeg
		if p.Engine != nil && p.Name != nil && len(p.Blocks) == 1 {
			c.req.From = Remote{Engine: *p.Engine, Name: *p.Name, Blocks: p.Blocks[0], Tokens: p.Tokens}
		}
		return nil
	case p.Engine == nil || p.Name == nil || len(p.Blocks) != 1:
		return badRequest(param, "kv_transfer_params: want remote_engine_id, remote_request_id and one list in remote_block_ids")
	}
	c.req.Leg, c.req.From = ImportLeg, Remote{Engine: *p.Engine, Name: *p.Name, Blocks: p.Blocks[0]}
	return nil
}

// id is what other engines know this run of the engine by.
func (e *Engine) id() string {
	return e.cfg.Name + "-" + strconv.FormatUint(e.cfg.Generation, 16)
}

// exportName is the name of a request of that id among those of other engines. Two requests of one id have two.
func (e *Engine) exportName(id string, chat bool) string {
	switch {
	case e.cfg.PlainNames && chat:
		return id
	case e.cfg.PlainNames:
		return id + "-0"
	}
	return fmt.Sprintf("%s-0-%08x", id, e.exported.Add(1))
}

// export keeps the blocks of a finished prompt, or of prompt and answer, for another engine.
func (e *Engine) export(s *Sequence) {
	n, size, lease, pins := len(s.req.Tokens), e.cfg.BlockTokens, e.cfg.Lease, s.req.Leg == ImportLeg
	if pins {
		n, lease = s.computed, e.cfg.PinFor
	}
	full := (n + size - 1) / size
	x := &export{blocks: s.table[:full]}
	e.pool.release(s.table[full:])
	s.table = nil
	name, id, host, port := s.req.Name, e.id(), pullHost, e.port
	e.exports[name] = x
	x.late = time.AfterFunc(lease, func() {
		e.post(func() {
			if e.exports[name] == x {
				e.counts.expired++
				e.dropExport(name)
			}
		})
	})
	if pins && e.cfg.PinsClaimed > 0 {
		n = e.cfg.PinsClaimed
	}
	s.exported = &remoteBody{
		Decode: pins, Prefill: !pins, Engine: &id, Name: &name, Host: &host, Port: &port, Blocks: [][]int32{slices.Clone(x.blocks)}, Tokens: n, TP: e.cfg.TP,
		Mode: "pull", Cached: s.cached,
	}
}

// dropExport frees what is kept under a name, if anything is.
func (e *Engine) dropExport(name string) {
	if x := e.exports[name]; x != nil {
		x.late.Stop()
		e.pool.release(x.blocks)
		delete(e.exports, name)
	}
}

// leastRead is how many tokens an export leg must lack to read them: vLLM's kv_recompute_threshold.
const leastRead = 64

// remoteTokens is how many tokens of the prompt another engine has, as the request says.
func (s *Sequence) remoteTokens() int {
	if s.req.Leg == ExportLeg {
		return min(s.req.From.Tokens, len(s.req.Tokens))
	}
	return len(s.req.Tokens)
}

// fetch reads the blocks that the prompt lacks from the end of the list that it was given. An export leg of an engine that is not Bidirectional
// waits for what it does not ask for, as stock vLLM does.
func (e *Engine) fetch(s *Sequence) {
	n := s.remoteTokens()
	own := s.table[s.cached/e.cfg.BlockTokens : max(s.cached, n+e.cfg.BlockTokens-1)/e.cfg.BlockTokens]
	if s.req.Leg == ExportLeg {
		switch {
		case n-s.cached <= 0 || n-s.cached < leastRead:
			own = nil
		case !e.cfg.Bidirectional:
			return
		}
	}
	from := s.req.From
	src := e.cfg.Pull.engine(from.Engine)
	if len(own) == 0 { // all of it is cached
		if src != nil {
			src.post(func() { src.dropExport(from.Name) })
		}
		e.fetched(s, nil, nil, nil)
		return
	}
	if src == nil || len(from.Blocks) < len(own) {
		e.fetched(s, nil, nil, fmt.Errorf("%w: %s does not have the blocks", ErrTransfer, from.Engine))
		return
	}
	go func() {
		var words []uint64
		err := fmt.Errorf("%w: %s is gone", ErrTransfer, from.Engine)
		src.ask(func() { words, err = src.read(from.Name, from.Blocks[len(from.Blocks)-len(own):]) })
		e.post(func() { e.fetched(s, own, words, err) })
	}()
}

// read copies blocks that are kept under a name, and keeps them no more.
func (e *Engine) read(name string, blocks []int32) ([]uint64, error) {
	if e.exports[name] == nil {
		return nil, fmt.Errorf("%w: %s keeps no request %s", ErrTransfer, e.cfg.Name, name)
	}
	var out []uint64
	e.words(blocks, &out, (*cache).get)
	e.dropExport(name)
	return out, nil
}

// words takes all words of blocks, one head of one token after the other, and does with each what do says. Blocks that the engine does not have
// are other ones, as with wrong addresses.
func (e *Engine) words(blocks []int32, all *[]uint64, do func(m *cache, layer int, block int32, plane, head, place int, words []uint64)) {
	shape, size := e.cfg.Shape, e.cfg.BlockTokens
	n := shape.Layers * shape.Heads * planes * size * shape.HeadDim
	if *all == nil {
		*all = make([]uint64, n*len(blocks))
	}
	for _, r := range e.group.ranks {
		c := r.cache
		for l := c.layers.first; c.layers.has(l); l++ {
			for h := c.heads.first; c.heads.has(h); h++ {
				for p := range planes {
					for i, b := range blocks {
						for place := range size {
							at := ((((i*shape.Layers+l)*shape.Heads+h)*planes+p)*size + place) * shape.HeadDim
							do(c, l, b%int32(e.cfg.Blocks), p, h, place, (*all)[at:at+shape.HeadDim])
						}
					}
				}
			}
		}
		c.memory.settle()
	}
}

// fetched lets an import run with what was read, or ends it.
func (e *Engine) fetched(s *Sequence, own []int32, words []uint64, err error) {
	switch {
	case s.state == done: // it was aborted meanwhile
		e.pool.release(s.table)
		s.table = nil
		return
	case err != nil:
		s.state = waiting // nothing lands in its blocks any more
		e.abort(s, err, "transfer failed")
		return
	}
	if f, ok := find(s.faults, Late); ok && !s.late && (f.From == "" || strings.HasPrefix(s.req.From.Engine, f.From+"-")) {
		s.late = true
		time.AfterFunc(f.Wait, func() { e.post(func() { e.fetched(s, own, words, nil) }) })
		return
	}
	e.words(own, &words, (*cache).put)
	if s.req.Leg == ExportLeg {
		e.preceded(s, own)
	} else {
		e.received(s)
	}
	e.remember(s)
}

// preceded has an export leg compute what comes behind the blocks that it has read; at least the last token.
func (e *Engine) preceded(s *Sequence, own []int32) {
	s.state = running
	e.running = append(e.running, s)
	e.counts.prompt[sourceCache] += uint64(s.cached)
	if len(own) > 0 {
		n := min(s.remoteTokens(), len(s.req.Tokens)-1)
		e.counts.prompt[sourceExternal] += uint64(n - s.cached)
		s.external, s.computed = n-s.cached, n
	}
}

// pullHost is where the side channels of all engines are said to be, each at a port of its own.
const pullHost = "127.0.0.1"

// join enters an engine. It does nothing without a Pull.
func (p *Pull) join(e *Engine) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engines == nil {
		p.engines = map[string]*Engine{}
	}
	p.joined++
	e.port = p.joined
	p.engines[e.id()] = e
}

func (p *Pull) leave(e *Engine) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.engines, e.id())
}

func (p *Pull) engine(id string) *Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engines[id]
}

// First returns the record of the engine whose side channel is at a port, as it would say it itself.
func (p *Pull) First(port int) (metadata.Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, e := range p.engines {
		if e.port == port {
			r := metadata.Record{Version: metadata.RecordVersion, EngineID: id, Compatibility: e.cfg.Shape.Compatibility(), Transport: "nixl", Size: metadata.Rank{DP: 1, PP: 1, TP: e.cfg.TP}}
			r.Layout.BlockTokens = e.cfg.BlockTokens
			return r, nil
		}
	}
	return metadata.Record{}, fmt.Errorf("refengine: no engine has the port %d", port)
}

// Notify tells an engine, as the reader would, that it need not keep what it has for a request. message is the request's name, a colon and
// a number of ranks.
func (p *Pull) Notify(_ context.Context, engineID, message string) error {
	e := p.engine(engineID)
	if e == nil {
		return fmt.Errorf("refengine: no engine is called %s", engineID)
	}
	name, _, _ := strings.Cut(message, ":")
	e.ask(func() {
		if slices.ContainsFunc(e.running, func(s *Sequence) bool { return s.req.Name == name }) {
			e.counts.early++
		}
		e.dropExport(name)
	})
	return nil
}
