package kvplane

import "pdrouter/metadata"

// Report is what an agent tells its engine about one transfer. An accepted Offer ends in exactly one Sent; an
// Expectation in Ready, or in Failed followed, perhaps much later, by Reusable.
type Report struct {
	ID     TransferID
	Rank   metadata.Rank // whose agent reports
	Kind   ReportKind
	Order  OrderKind   // which order the report answers; one id may be queued first and expected later
	Reason Reason      // Failed; Sent when a consumer went without
	Detail string      // for people, may be empty
	Groups []BlockList // the blocks that the report is about, as given with the Expectation or the Offer
	Tokens int         // Ready: tokens that P has computed, the least that any producer named; 0 if nothing was needed
	Blocks int         // logical blocks in Groups
	Bytes  uint64      // Sent: bytes written for all consumers
	Rest   []Range     // Ready: old memory of this rank in the last blocks, by Local; to be cleared before decode
	K, N   int         // counted of expected: writers (Ready, Failed), consumers (Sent)
}

// ReportKind says what a Report is.
type ReportKind uint8

// The kinds of Report.
const (
	// Ready: every byte this rank needs has landed.
	Ready ReportKind = iota + 1
	// Failed: the transfer has failed on this rank. Its blocks may still be written to: they must not be read,
	// hashed, freed or used again before Reusable.
	Failed
	// Reusable: after Failed, nothing can land in the blocks any more.
	Reusable
	// Sent: P no longer reads this request's blocks on this rank. Free them when all ranks have reported it.
	Sent
)

// String names the kind.
func (k ReportKind) String() string {
	switch k {
	case Ready:
		return "ready"
	case Failed:
		return "failed"
	case Reusable:
		return "reusable"
	case Sent:
		return "sent"
	}
	return "unknown"
}

// OrderKind says which kind of order a Report answers. An id has at most one order of each kind that is not answered yet,
// so the kind identifies the order.
type OrderKind uint8

// The kinds of orders.
const (
	QueueOrder  OrderKind = iota + 1 // Queued: Failed and Reusable say that P does not keep the transfer, and no write request was sent
	ExpectOrder                      // Expectation
	OfferOrder                       // Offer
)

// String names the kind.
func (k OrderKind) String() string {
	switch k {
	case QueueOrder:
		return "queue"
	case ExpectOrder:
		return "expect"
	case OfferOrder:
		return "offer"
	}
	return "unknown"
}

// Reason says why a transfer or one consumer of it ended without its blocks. The numbers are part of the protocol.
type Reason uint8

// The reasons. Zero is none.
const (
	Cancelled    Reason = iota + 1 // D gave up
	NoOffer                        // P's engine did not finish the request while D waited
	Aborted                        // P's engine aborted the request or never ran it
	Handshake                      // the peer's records could not be had
	LeaseOver                      // D did not come while P kept the blocks
	Sibling                        // another consumer of the same transfer failed
	Spent                          // the reference has served already
	Stranger                       // not the peer that the gateway named
	Full                           // a table is at its bound
	Conflict                       // two different write requests under one number, or two for one transfer
	Short                          // P's blocks and D's need cannot be brought together
	Unplannable                    // the two layouts cannot be brought together
	WriteFailed                    // a started write ended in an error
	SubmitFailed                   // a write could not be posted
	Deadline                       // D's own deadline
	PeerGone                       // the connection was lost and did not come back
	Superseded                     // a newer run of the peer is known
	Stopped                        // another rank failed, or the engine gave up
	Closing                        // the agent is being closed
	Ticket                         // the two legs were not dispatched under the same ticket
	Tokens                         // the two sides have computed and expect different tokens
	NoKey                          // one of the two has no key, so its messages cannot be verified
	Busy                           // too much is being written to D already
)

// Reasons is how many there are, none included.
const Reasons = int(Busy) + 1

var reasonNames = [Reasons]string{
	"", "cancelled", "no_offer", "aborted", "handshake", "lease_over", "sibling", "spent", "stranger", "full", "conflict",
	"short", "unplannable", "write_failed", "submit_failed", "deadline", "peer_gone", "superseded", "stopped", "closing",
	"ticket", "tokens", "no_key", "busy",
}

// String returns the name used in events and logs, "" for none.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}
