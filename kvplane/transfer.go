package kvplane

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// TransferID names the hand-off of one request's KV from one engine to another.
type TransferID = transfer.ID

// NewTransferID draws a new id.
func NewTransferID() TransferID { return transfer.NewID() }

// ParseTransferID is the inverse of String. Capital digits and the zero id are refused.
func ParseTransferID(s string) (TransferID, error) { return transfer.ParseID(s) }

// Range is a copy from memory of one rank to memory of another.
type Range = transfer.Range

// BlockList is one group's blocks of a request on one rank.
type BlockList = transfer.BlockList

// Offer says that a request's KV is finished on P and visible in memory. The rank's agent keeps the blocks until it
// reports Sent; the engine frees them when all its ranks have.
type Offer struct {
	ID     TransferID
	Peer   metadata.Incarnation // the consumer engine, as the gateway named it; no other is served
	Tokens int                  // tokens computed, counted from the start of the request
	Groups []BlockList          // as many as the layout has groups, in its order
	Ticket [16]byte             // digest of the gateway's ticket; zero: it gave none
	Hash   [16]byte             // of the prompt's token ids; zero: not known
}

// Expectation says that D has reserved blocks for a request, which wait to be written. The blocks are pinned until
// the agent has reported Ready or Reusable.
type Expectation struct {
	ID     TransferID
	Peer   metadata.Incarnation // the producer engine, as the gateway named it; no other is accepted
	Need   [2]int               // tokens [t0, t1) that decode needs and does not hold; t0 == t1 needs nothing
	Groups []BlockList          // as many as the layout has groups, in its order; only blocks that no other request reads
	Ticket [16]byte             // digest of the gateway's ticket; zero: it gave none
	Hash   [16]byte             // of the prompt's token ids; zero: not known
	Wait   time.Duration        // how long a producer may take to offer; 0 is Times.Wait
}

// HashTokens is the digest of a prompt by which two engines see that they mean the same tokens: of the ids in order,
// four bytes each, the least significant first.
func HashTokens(ids []int32) [16]byte {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
