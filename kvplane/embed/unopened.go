package embed

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// unopened is a rank without an agent. It keeps what is ordered of it until there is one. Until then no record of the rank's memory
// is anywhere, so nobody can write there: what is given up meanwhile is safe at once, and so is everything once it is known that
// there will be no agent.
type unopened struct {
	rank    metadata.Rank
	orders  []sched.Orders
	never   string // why there will be no agent; "": there may be one yet
	fresh   bool   // the scheduler does not know that
	reports []kvplane.Report
}

// maxEarly bounds the steps of orders that wait for an agent.
const maxEarly = 1 << 12

// take notes the orders of a step, or answers them. It reports whether there was room.
func (u *unopened) take(o sched.Orders) bool {
	if u.never == "" && len(u.orders) >= maxEarly {
		return false
	}
	given := o.Abandon
	o.Abandon = nil
	u.orders = append(u.orders, o)
	for _, x := range given {
		if !u.answer(kvplane.Stopped, x.Why, func(id kvplane.TransferID) bool { return id == x.ID }) {
			late := &u.orders[len(u.orders)-1] // its agent may hear of the transfer all the same
			late.Abandon = append(late.Abandon, x)
		}
	}
	if u.never != "" {
		u.end()
	}
	return true
}

// fail says that there will be no agent.
func (u *unopened) fail(why string) {
	u.never, u.fresh = Cut(why, maxWhy), true
	u.end()
}

// end answers all that is ordered.
func (u *unopened) end() {
	u.answer(kvplane.Closing, u.never, func(kvplane.TransferID) bool { return true })
	u.orders = nil
}

// answer ends what was ordered of some transfers, each once, and reports whether there was any.
func (u *unopened) answer(why kvplane.Reason, detail string, which func(kvplane.TransferID) bool) bool {
	ended := map[kvplane.TransferID]bool{}
	end := func(id kvplane.TransferID, order kvplane.OrderKind, groups []kvplane.BlockList, kinds ...kvplane.ReportKind) bool {
		if !which(id) {
			return false
		}
		for _, kind := range kinds {
			if ended[id] {
				break
			}
			r := kvplane.Report{ID: id, Rank: u.rank, Kind: kind, Order: order, Groups: groups}
			if kind != kvplane.Safe {
				r.Reason, r.Detail = why, detail
			}
			for _, g := range groups {
				r.Blocks += len(g.Blocks)
			}
			u.reports = append(u.reports, r)
		}
		ended[id] = true
		return true
	}
	for i := range u.orders {
		o := &u.orders[i]
		o.Expect = without(o.Expect, func(x *kvplane.Expectation) bool {
			return end(x.ID, kvplane.ExpectOrder, x.Groups, kvplane.Negative, kvplane.Safe)
		})
		o.Offer = without(o.Offer, func(x *kvplane.Offer) bool { return end(x.ID, kvplane.OfferOrder, x.Groups, kvplane.Sent) })
	}
	for i := range u.orders { // behind these: what was only queued first has been answered with them
		o := &u.orders[i]
		o.Queue = without(o.Queue, func(x *sched.Queued) bool {
			return end(x.ID, kvplane.QueueOrder, nil, kvplane.Negative, kvplane.Safe)
		})
	}
	return len(ended) > 0
}

// without drops what has ended.
func without[T any](all []T, ended func(*T) bool) []T {
	left := all[:0]
	for i := range all {
		if !ended(&all[i]) {
			left = append(left, all[i])
		}
	}
	return left
}
