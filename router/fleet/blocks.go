package fleet

import (
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
)

// KVEvents is where the engine publishes its blocks by the current configuration; the zero value if it is not followed.
func (e *Engine) KVEvents() config.KVEvents {
	if at := e.kvEvents.Load(); at != nil {
		return *at
	}
	return config.KVEvents{}
}

// SetHolder gives the engine its place in the index of blocks; nil takes it, also while its events do not come. Package kvevents, which feeds
// the index, calls it.
func (e *Engine) SetHolder(h *blocks.Holder) { e.holder.Store(h) }

// FindBlocks asks the index of blocks, which engines themselves feed, how much of a prompt they hold. Engine.Held reads the answer. p.Model is
// a model's name by the configuration. It allocates nothing if found has the room, and is safe for concurrent use.
func (f *Fleet) FindBlocks(p *blocks.Prompt, found *blocks.Found) { f.blocks.Find(p, found) }

// Held is how many leading tokens of the prompt that was looked for the engine has, by tier. known is false if its blocks are not followed, and
// while its events do not come. partial says that it may have more, as the index has left out some of its blocks.
func (e *Engine) Held(found *blocks.Found) (held blocks.Held, partial, known bool) {
	h := e.holder.Load()
	if h == nil {
		return blocks.Held{}, false, false
	}
	return found.Of(*h), found.Partial(*h), true
}
