package sched

import (
	"fmt"
	"math"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
)

// The msgpack form of Orders and RankReport is arrays, in the order of the fields here, the first element the version.
// Ids are binary, times nanoseconds, everything else numbers and text. Equal values give equal bytes.
const ordersVersion = 3

// Bounds on what a decoded form may hold.
const (
	maxOrders = 1 << 16 // elements of each list
	maxListed = 1 << 22 // blocks, all lists of a form together
	maxText   = 1 << 12 // bytes of a text
	maxCount  = math.MaxInt32
)

// Marshal returns the msgpack form.
func (o Orders) Marshal() []byte {
	p := newPacker()
	p.list(5)
	p.uint(ordersVersion)
	pack(p, o.Queue, func(q *Queued) {
		p.list(3)
		p.id(q.ID)
		p.incarnation(q.Peer)
	})
	pack(p, o.Expect, func(x *kvplane.Expectation) {
		p.list(9)
		p.id(x.ID)
		p.incarnation(x.Peer)
		p.int(int64(x.Need[0]))
		p.int(int64(x.Need[1]))
		p.groups(x.Groups)
		p.bytes(x.Ticket[:])
		p.bytes(x.Hash[:])
		p.int(int64(max(x.Wait, 0)))
	})
	pack(p, o.Offer, func(x *kvplane.Offer) {
		p.list(7)
		p.id(x.ID)
		p.incarnation(x.Peer)
		p.int(int64(x.Tokens))
		p.groups(x.Groups)
		p.bytes(x.Ticket[:])
		p.bytes(x.Hash[:])
	})
	pack(p, o.Abandon, func(x *Abandonment) {
		p.list(2)
		p.id(x.ID)
		p.text(x.Why)
	})
	return p.buf.Bytes()
}

// ParseOrders is the inverse of Marshal for bytes from anywhere. What does not fit is an error.
func ParseOrders(b []byte) (Orders, error) {
	u := newUnpacker(b)
	u.head("orders", 5)
	var o Orders
	o.Queue = unpack(u, maxOrders, func(q *Queued) {
		u.exactly(3)
		q.ID, q.Peer = u.id(), u.incarnation()
	})
	o.Expect = unpack(u, maxOrders, func(x *kvplane.Expectation) {
		u.exactly(9)
		x.ID, x.Peer = u.id(), u.incarnation()
		x.Need = [2]int{u.int(0, transfer.MaxTokens), u.int(0, transfer.MaxTokens)}
		x.Groups = u.groups()
		u.fill(x.Ticket[:])
		u.fill(x.Hash[:])
		x.Wait = time.Duration(u.int(0, int(kvplane.MaxWait)))
	})
	o.Offer = unpack(u, maxOrders, func(x *kvplane.Offer) {
		u.exactly(7)
		x.ID, x.Peer = u.id(), u.incarnation()
		x.Tokens = u.int(0, transfer.MaxTokens)
		x.Groups = u.groups()
		u.fill(x.Ticket[:])
		u.fill(x.Hash[:])
	})
	o.Abandon = unpack(u, maxOrders, func(x *Abandonment) {
		u.exactly(2)
		x.ID, x.Why = u.id(), u.text()
	})
	if err := u.end(); err != nil {
		return Orders{}, fmt.Errorf("kvplane: orders: %w", err)
	}
	return o, nil
}

// Fit returns how many of these reports, from the first on, one RankReport can hold so that ParseRankReport takes it. It is at least 1 if there
// are any.
func Fit(reports []kvplane.Report) int {
	left := maxListed
	for i := range reports {
		left -= transfer.CountBlocks(reports[i].Groups) + len(reports[i].Rest)
		if i == maxOrders || i > 0 && left < 0 {
			return i
		}
	}
	return len(reports)
}

// Marshal returns the msgpack form.
func (r RankReport) Marshal() []byte {
	p := newPacker()
	p.list(8)
	p.uint(ordersVersion)
	p.incarnation(r.Engine)
	p.rank(r.Rank)
	p.uint(r.Seq)
	pack(p, r.Reports, func(x *kvplane.Report) {
		p.list(13)
		p.id(x.ID)
		p.rank(x.Rank)
		p.uint(uint64(x.Kind))
		p.uint(uint64(x.Order))
		p.uint(uint64(x.Reason))
		p.text(x.Detail)
		p.groups(x.Groups)
		p.int(int64(x.Tokens))
		p.int(int64(x.Blocks))
		p.uint(x.Bytes)
		p.int(int64(x.K))
		p.int(int64(x.N))
		pack(p, x.Rest, func(r *kvplane.Range) {
			p.list(3)
			p.uint(r.Local)
			p.uint(r.Remote)
			p.uint(r.Length)
		})
	})
	p.int(int64(r.Handshakes))
	pack(p, r.Pending, func(id *kvplane.TransferID) { p.id(*id) })
	return p.buf.Bytes()
}

// ParseRankReport is the inverse of Marshal for bytes from anywhere. What does not fit is an error.
func ParseRankReport(b []byte) (RankReport, error) {
	u := newUnpacker(b)
	u.head("rank report", 8)
	r := RankReport{Engine: u.incarnation(), Rank: u.rank(), Seq: u.uint(math.MaxUint64)}
	r.Reports = unpack(u, maxOrders, func(x *kvplane.Report) {
		u.exactly(13)
		x.ID, x.Rank = u.id(), u.rank()
		x.Kind, x.Order = kvplane.ReportKind(u.int(int(kvplane.Ready), int(kvplane.Sent))), kvplane.OrderKind(u.int(int(kvplane.QueueOrder), int(kvplane.OfferOrder)))
		x.Reason = kvplane.Reason(u.int(0, math.MaxUint8))
		x.Detail, x.Groups = u.text(), u.groups()
		x.Tokens, x.Blocks, x.Bytes = u.int(0, transfer.MaxTokens), u.int(0, maxCount), u.uint(math.MaxUint64)
		x.K, x.N = u.int(0, maxCount), u.int(0, maxCount)
		x.Rest = unpack(u, maxListed, func(r *kvplane.Range) {
			u.exactly(3)
			r.Local, r.Remote, r.Length = u.uint(math.MaxUint64), u.uint(math.MaxUint64), u.uint(math.MaxUint64)
		})
	})
	r.Handshakes = u.int(0, maxCount)
	r.Pending = unpack(u, MaxPending, func(id *kvplane.TransferID) { *id = u.id() })
	if err := u.end(); err != nil {
		return RankReport{}, fmt.Errorf("kvplane: rank report: %w", err)
	}
	return r, nil
}
