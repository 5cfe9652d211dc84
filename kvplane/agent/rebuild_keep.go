package agent

import (
	"slices"
	"time"
)

// keepEnded hands over what an agent that is rebuilt remembers of transfers that have ended, or were given up before
// they began: an id serves once, under whatever name.
func (w *writer) keepEnded(p *producer, c *consumer) {
	w.producer.keepSpent(p, w.now())
	w.consumer.keepSafe(c, w.now())
}

// keepSpent takes over what an older table had spent. Their sessions are gone, the ids are not.
func (p *producer) keepSpent(old *producer, now time.Duration) {
	ended := slices.Clone(old.spent.all[old.spent.from:])
	served := len(ended)
	for _, g := range old.given {
		if g.state == givenSpent && g.offer == nil {
			ended = append(ended, g)
		}
	}
	slices.SortFunc(ended[served:], func(a, b *given) int { return a.id.Compare(b.id) })
	for _, g := range ended {
		if g.state != givenSpent || old.given[g.id] != g || p.given[g.id] != nil {
			continue
		}
		kept := &given{id: g.id, state: givenSpent, offer: g.offer, reason: g.reason, detail: g.detail, wake: max(g.wake, now+1)}
		p.given[g.id] = kept
		if kept.offer == nil {
			p.unborn++
		} else {
			p.spent.push(kept)
		}
		p.timers.Set(kept)
	}
}

// keepSafe takes over what an older table had ended. Nothing is registered under these ids any more.
func (c *consumer) keepSafe(old *consumer, now time.Duration) {
	var ended []*receipt
	for _, r := range old.receipts {
		if r.state == receiptReady || r.state == receiptSafe {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(a, b *receipt) int { return a.id.Compare(b.id) })
	for _, r := range ended {
		kept := &receipt{
			id: r.id, state: receiptSafe, inc: r.inc, expect: r.expect, reason: r.reason, detail: r.detail,
			retired: r.retired || r.expect != nil, wake: max(r.wake, now+c.times.Wait),
		}
		c.receipts[r.id] = kept
		c.timers.Set(kept)
	}
}
