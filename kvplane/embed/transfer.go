package embed

import (
	"fmt"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// Bounds on what a scheduler keeps.
const (
	maxLegs   = 1 << 16
	maxOrders = 1 << 15        // of each kind in one step
	maxListed = 1 << 21        // blocks in the orders of one step
	maxBlocks = wire.MaxBlocks // of one transfer
	maxTokens = 1 << 40
	maxGroups = metadata.MaxGroups
	maxWait   = 24 * time.Hour
	maxWhy    = 1 << 10
)

func checkPeer(id kvplane.TransferID, peer metadata.Incarnation) error {
	if id == (kvplane.TransferID{}) {
		return wrong(Argument, "embed: the transfer id is zero")
	}
	if err := metadata.ValidName(peer.Engine); err != nil {
		return wrong(Argument, "embed: transfer %s: %w", id, err)
	}
	if peer.Generation == 0 {
		return wrong(Argument, "embed: transfer %s: the peer's generation is 0", id)
	}
	return nil
}

// Transfer is what an engine says of one of its transfers.
type Transfer struct {
	ID       kvplane.TransferID
	Peer     metadata.Incarnation
	From, To int // tokens
	Groups   []kvplane.BlockList
	Prompt   []int32 // nil: not checked
	Wait     time.Duration
}

// check refuses what the ranks would not take.
func (t *Transfer) check() error {
	if err := checkPeer(t.ID, t.Peer); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return wrong(Argument, "embed: transfer %s: %w", t.ID, fmt.Errorf(format, args...))
	}
	switch {
	case t.From < 0 || t.To < t.From || t.To > maxTokens:
		return bad("tokens [%d, %d); want 0 to %d", t.From, t.To, maxTokens)
	case len(t.Groups) < 1 || len(t.Groups) > maxGroups:
		return bad("%d groups; want 1 to %d", len(t.Groups), maxGroups)
	case t.Wait < 0 || t.Wait > maxWait:
		return bad("wait is %v; want 0 to %v", t.Wait, maxWait)
	}
	blocks := 0
	for i, g := range t.Groups {
		if g.First < 0 || g.First > maxTokens {
			return bad("groups[%d] begins with token %d; want 0 to %d", i, g.First, maxTokens)
		}
		for _, b := range g.Blocks {
			if b < 0 {
				return bad("groups[%d] has block %d", i, b)
			}
		}
		blocks += len(g.Blocks)
	}
	if blocks > maxBlocks {
		return bad("%d blocks; want at most %d", blocks, maxBlocks)
	}
	return nil
}

// hash is the digest of the prompt, zero if it is not known.
func (t *Transfer) hash() [16]byte {
	if len(t.Prompt) == 0 {
		return [16]byte{}
	}
	return kvplane.HashTokens(t.Prompt)
}
