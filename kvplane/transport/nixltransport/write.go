package nixltransport

import (
	"fmt"

	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
)

// writeInProgress is a request that was posted and has not been seen to end.
type writeInProgress struct {
	id     uint64
	agent  string
	peer   *knownPeer
	handle *nixl.Transfer
	failed error // the post itself failed

	before, after *writeInProgress // in the order of their posts
}

// Write implements Transport. Ranges outside the memory of either side are refused here.
func (t *Transport) Write(agent string, id uint64, ranges []transfer.Range, notify []byte) error {
	if err := t.write(agent, id, ranges, notify); err != nil {
		return fmt.Errorf("kvplane: nixl write to %s: %w", agent, err)
	}
	return nil
}

func (t *Transport) write(agent string, id uint64, ranges []transfer.Range, notify []byte) error {
	p, err := t.writable(agent, notify)
	if err != nil {
		return err
	}
	if len(notify) == 0 {
		notify = nil
	}
	if len(ranges) == 0 {
		if notify != nil {
			if err := t.send(agent, notify); err != nil {
				return err
			}
		}
		t.ended = append(t.ended, transport.Incoming{Kind: transport.WriteEnded, Agent: agent, ID: id})
		return nil
	}
	from, into := sideOf{whose: "this agent's", spans: t.memory}, sideOf{whose: "the peer's", spans: p.remote}
	local, remote := make([]nixl.Region, len(ranges)), make([]nixl.Region, len(ranges))
	for i, r := range ranges {
		if r.Length == 0 {
			return fmt.Errorf("range at %#x is empty", r.Local)
		}
		if local[i], err = from.region(r.Local, r.Length); err != nil {
			return err
		}
		if remote[i], err = into.region(r.Remote, r.Length); err != nil {
			return err
		}
	}
	handle, err := t.agent.NewTransfer(nixl.Write, nixl.Memory{Kind: from.kind, Regions: local},
		nixl.Memory{Kind: into.kind, Regions: remote}, agent, notify)
	if err != nil {
		return err
	}
	t.start(&writeInProgress{id: id, agent: agent, peer: p, handle: handle})
	return nil
}

// writable returns a peer that may be written to with this notification.
func (t *Transport) writable(agent string, notify []byte) (*knownPeer, error) {
	p, err := t.peer(agent)
	if err == nil && len(notify) > transport.MaxMessage {
		err = fmt.Errorf("notification of %d bytes; at most %d", len(notify), transport.MaxMessage)
	}
	return p, err
}

// start posts a request. Should that fail, some of it may have gone out all the same: then it was posted, and ends
// when nothing is under way any more.
func (t *Transport) start(w *writeInProgress) {
	status, err := w.handle.Post()
	w.failed = err
	w.peer.writing++
	if status != nixl.InProgress && err == nil {
		t.end(w, nil)
		return
	}
	t.ringFor(w.peer, expectant) // over sockets it must help the bytes on
	t.writing.add(w)
}

// end gives the handle back, now that it has left «in progress», and reports how the write ended.
func (t *Transport) end(w *writeInProgress, err error) {
	if closeErr := w.handle.Close(); closeErr != nil {
		t.cfg.Log.Warn("kvplane: nixl handle not released", "agent", t.name, "peer", w.agent, "err", closeErr)
	}
	in := transport.Incoming{Kind: transport.WriteEnded, Agent: w.agent, ID: w.id}
	if err != nil {
		in.Err = fmt.Errorf("kvplane: nixl write to %s: %w: %w", w.agent, transport.ErrPeerLost, err)
	}
	t.ended = append(t.ended, in)
	w.peer.writing--
	if err != nil {
		t.lose(w.agent, w.peer, err)
	} else {
		t.ringFor(w.peer, expectant) // its notification went out just now
	}
	t.forget(w.agent, w.peer)
}
