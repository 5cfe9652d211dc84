package reclaim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/openai/jsonscan"
)

// Answered is called when a decode engine has answered a split request to its end. With vLLM's bidirectional_kv_xfer the engine then pins the
// blocks of prompt and answer for minutes, so that another engine may read them. They are freed, as nobody is to read them. kv are the
// kv_transfer_params of the answer: without them nothing is pinned. It does not block.
func (r *Reclaimer) Answered(s *Snapshot, d *fleet.Engine, kv []byte) {
	if p := r.Pinned(s, d, kv); p != nil {
		r.Unpin([]*Pinned{p})
	}
}

// Pinned is what an answer says that its decode engine pins; nil if that is nothing. It is to be read by an engine, or given to Unpin.
func (r *Reclaimer) Pinned(s *Snapshot, d *fleet.Engine, kv []byte) *Pinned {
	if kv == nil || !d.Origin.Connector.Traits().Reads {
		return nil
	}
	p, ok := pinnedOf(s, d, kv)
	if !ok {
		return nil
	}
	if d.NotePins() {
		r.log.Warn("engine pins the KV of what it has answered (bidirectional_kv_xfer)", "engine", d.Name)
	}
	return p
}

// Unpin has engines free what they pin, by the message that a reader would send, or counts it as held. It does not block.
func (r *Reclaimer) Unpin(all []*Pinned) {
	for len(all) > 0 {
		d := all[0].d
		var of []*Pinned
		all = slices.DeleteFunc(slices.Clone(all), func(p *Pinned) bool {
			if p.d == d {
				of = append(of, p)
			}
			return p.d == d
		})
		why := of[0].cannotFree()
		if why == CauseNone && !r.tasks.Try(of[0].s.Limits.Background, of[0].s.Timeouts.Cleanup, func(ctx context.Context) {
			for _, p := range of {
				r.unpin(ctx, p)
			}
		}) {
			why = CauseBusy
		}
		if why != CauseNone {
			for _, p := range of {
				r.stayPinned(p, why)
			}
		}
	}
}

// Streamed is Answered for a stream that has come to its end. Streams never have kv_transfer_params, so whether the engine pins is remembered for
// its run, from an answer that is not streamed: a handshake's. Its message names the request as the gateway has, and is sent only after a later
// request has completed: a stream that ends by a stop string ends at the engine's scheduler later than for its client, and the message for a
// request that still runs would end the engine. tokens is the length of prompt and answer, estimated.
func (r *Reclaimer) Streamed(s *Snapshot, d *fleet.Engine, model string, h *connector.Handoff, tokens int) {
	if !d.Pins() {
		return
	}
	p := &Pinned{
		s: s, d: d, answered: time.Now(), tokens: tokens, name: string(h.Shape.AppendEngineRequest(nil, h.Request)), streamed: true,
		at: &connector.PrefillEndpoint{EngineID: d.ChannelReport().Run, TP: max(1, d.Origin.Entry.TensorParallel), PP: 1},
	}
	if why := p.cannotFree(); why != CauseNone {
		r.stayPinned(p, why)
		return
	}
	of := r.streams.Of(d)
	of.mu.Lock()
	defer of.mu.Unlock()
	of.ended = append(of.ended, p)
	if !of.running {
		of.running = true
		r.tasks.Go("what streams have pinned", func() { r.unpinStreams(of, model) })
	}
}

// pinnedStreams is what an engine pins for streams that have ended. One goroutine frees all of it: streams are many, and each waits for a request
// that comes later.
type pinnedStreams struct {
	mu      sync.Mutex
	ended   []*Pinned // those that no later request is awaited for yet
	running bool      // the goroutine
}

// unpinStreams frees what there is until there is nothing.
func (r *Reclaimer) unpinStreams(of *pinnedStreams, model string) {
	for {
		of.mu.Lock()
		all := of.ended
		of.ended, of.running = nil, len(all) > 0
		of.mu.Unlock()
		if len(all) == 0 {
			return
		}
		r.tasks.Recover("what streams have pinned", func() { r.unpinAll(all, model) })
	}
}

// unpinAll frees what one engine pins for streams that have ended, once it has completed a later request.
func (r *Reclaimer) unpinAll(all []*Pinned, model string) {
	s := all[len(all)-1].s
	ctx, cancel := context.WithTimeout(r.tasks.Context(), s.Timeouts.Cleanup)
	defer cancel()
	passed := r.wait(ctx, s, all[0].d, model, time.Now())
	for _, p := range all {
		if passed {
			r.unpin(ctx, p)
		} else {
			r.stayPinned(p, CauseNoBarrier)
		}
	}
}

// Pinned is what a decode engine pins for one request.
type Pinned struct {
	s      *Snapshot
	d      *fleet.Engine
	at     *connector.PrefillEndpoint // of the run
	name   string                     // the engine's own, of the request
	tokens int

	answered time.Time
	streamed bool // so the engine has not said any of this
	params   []byte
	blocks   int // 0: they are not one list
}

// Tokens is of how many tokens of prompt and answer the KV is.
func (p *Pinned) Tokens() int { return p.tokens }

// Blocks is how many blocks are pinned; 0 if they are not one list.
func (p *Pinned) Blocks() int { return p.blocks }

// Params are the kv_transfer_params that said so.
func (p *Pinned) Params() []byte { return p.params }

// Run is the engine's own name of its run.
func (p *Pinned) Run() string { return p.at.EngineID }

// Frees reports whether Unpin can free it.
func (p *Pinned) Frees() bool { return p.cannotFree() == CauseNone }

// pinnedOf is what the params of an answer say is pinned. It reports false if that is nothing.
func pinnedOf(s *Snapshot, d *fleet.Engine, kv []byte) (*Pinned, bool) {
	said, ok := connector.ParseKVParams(kv)
	at, located := connector.ParseEndpoint(kv)
	if !ok || !located || !said.Pins || len(said.Request) == 0 {
		return nil, false
	}
	of := connector.ParseHanded(kv)
	p := &Pinned{s: s, d: d, at: at, answered: time.Now(), name: string(jsonscan.Unescape(nil, said.Request)), tokens: of.Tokens, params: slices.Clone(kv)}
	if of.Groups == 1 {
		p.blocks = max(of.Blocks, 0)
	}
	return p, true
}

// cannotFree returns why what is pinned cannot be freed; CauseNone if it can.
func (p *Pinned) cannotFree() Cause {
	switch {
	case p.s.Agent == nil:
		return CauseNoAgent
	case !p.streamed:
		return CauseNone
	case !p.d.Origin.Entry.RequestIDRandomizationDisabled:
		return CauseNames
	case p.at.EngineID == "":
		return CauseChannel
	}
	return CauseNone
}

// unpin frees what is pinned for a request that its engine has surely finished.
func (r *Reclaimer) unpin(ctx context.Context, p *Pinned) {
	switch err := p.notify(ctx); {
	case err == nil:
		r.Leaks.reclaimed("answered", "notify_decode")
	case !errors.Is(err, errMoved): // with the run its blocks are gone
		r.log.Warn("notification", "engine", p.d.Name, "err", err)
		held, blocks := r.stayPinned(p, CauseNotNotified)
		r.tellAgain(untoldPin{p, held, blocks})
	}
}

// notify tells the engine's ranks that the blocks were read. Each frees its own by one message.
func (p *Pinned) notify(ctx context.Context) error {
	to, err := ranksOf(ctx, p.s, p.d, p.at)
	if err != nil {
		return err
	}
	return p.s.Agent.Notify(ctx, to, p.name+":1", 1)
}

// mostTokens are the most that an answer of an engine is believed to pin that does not say how much its cache holds.
const mostTokens = 1 << 20

// stayPinned counts what the engine pins until it frees it by itself.
func (r *Reclaimer) stayPinned(p *Pinned, why Cause) (heldBy, int) {
	block := cmp.Or(recordedBlock(p.s.Fleet.Records(p.d)...), defaultBlock)
	tokens := min(max(p.tokens, 1), cmp.Or(p.d.CacheSize().Tokens(), mostTokens)) // an engine may say anything
	blocks := (tokens + block - 1) / block
	now := time.Now()
	held := r.Leaks.add(p.d, why, blocks, max(1, p.answered.Add(pinnedFor).Sub(now)), now)
	r.log.Info("blocks stay pinned", "engine", p.d.Name, "blocks", blocks, "why", why.String())
	return held, blocks
}
