package kvevents

import (
	"pdrouter/policies/blocks"
	"pdrouter/router/kvevents/batch"
)

// enter takes the events of a batch into the index. If the batch cannot be read, what it says is lost, and so nothing that is known of the
// engine is certain any more.
func (w *follower) enter(payload []byte) {
	events := uint64(0)
	err := w.decoder.Decode(payload, func(e *batch.Event) {
		events++
		w.event(e)
	})
	if err != nil {
		w.feed.index.Clear(w.holder)
		w.warn("kv events unreadable", err)
	}
	w.note(func(s *Stats) {
		s.Events += events
		if err != nil {
			s.DecodeErrors++
		}
	})
}

// tierOf is where blocks of a medium are.
var tierOf = [...]blocks.Tier{batch.GPU: blocks.Device, batch.CPU: blocks.Host, batch.Storage: blocks.Disk}

// event enters one event. Groups whose blocks are no prefixes are left out.
func (w *follower) event(e *batch.Event) {
	switch {
	case e.Kind == batch.Cleared:
		w.feed.index.Clear(w.holder)
	case e.Kind == batch.Removed:
		w.feed.index.Remove(w.holder, tierOf[e.Medium], e.Group, e.Hashes)
	case e.WholePrefix:
		w.feed.index.Store(w.holder, &blocks.Blocks{
			Handles: e.Hashes, Parent: e.Parent, HasParent: e.HasParent, Tokens: e.Tokens, Size: e.BlockSize, Extra: e.Extra,
			Tier: tierOf[e.Medium], Group: e.Group, Model: w.engine.Model, LoRA: string(e.LoRA), Salt: string(e.Salt),
		})
	}
}
