package refengine

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// muted stands between the scheduler and ranks that never hear of some offers and claim to have sent them: the fault
// WithholdOffer. The engine's goroutine owns it.
type muted struct {
	offers map[kvplane.TransferID]int // the rank that does not hear; -1 is every one
	claims [][]kvplane.Report         // of each rank, not said yet
	seqs   []uint64
}

func newMuted(ranks int) *muted {
	return &muted{offers: map[kvplane.TransferID]int{}, claims: make([][]kvplane.Report, ranks), seqs: make([]uint64, ranks)}
}

func withholds(faults []Fault) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.Do == WithholdOffer })
}

func (m *muted) withhold(id kvplane.TransferID, rank int) { m.offers[id] = rank }

// orders are what the ith rank hears.
func (m *muted) orders(o sched.Orders, i int, rank metadata.Rank, ring func()) sched.Orders {
	o.Offer = slices.DeleteFunc(slices.Clone(o.Offer), func(x kvplane.Offer) bool {
		deaf, ok := m.offers[x.ID]
		if !ok || deaf >= 0 && deaf != i {
			return false
		}
		m.claims[i] = append(m.claims[i], kvplane.Report{ID: x.ID, Rank: rank, Kind: kvplane.Sent, Order: kvplane.OfferOrder})
		ring()
		return true
	})
	return o
}

// report is what the ith rank says, with its claims.
func (m *muted) report(r sched.RankReport, i int) sched.RankReport {
	r.Reports = append(r.Reports, m.claims[i]...)
	m.claims[i] = nil
	if len(r.Reports) > 0 {
		m.seqs[i]++
	}
	r.Seq = m.seqs[i]
	return r
}
