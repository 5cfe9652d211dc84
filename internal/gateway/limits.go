package gateway

import (
	"time"

	"pdrouter/auth"
	"pdrouter/internal/configfile"
	"pdrouter/internal/limits"
	"pdrouter/router/edge"
)

// clientLimits are limits as the router wants them.
type clientLimits struct {
	limiter *limits.Limiter
	tenants configfile.Tenants
}

// Acquire implements edge.Limiter.
func (c clientLimits) Acquire(who auth.Principal, expected int) (edge.Lease, edge.Allowance) {
	now, mine := time.Now(), c.tenants.Of(who)
	if mine == (limits.Limits{}) {
		return nil, edge.Allowance{}
	}
	if expected == edge.ExpectedLookup {
		return c.admitLookup(now, who.Tenant, mine)
	}
	e, no := c.limiter.Admit(now, who.Tenant, mine, expected)
	if no != nil {
		return nil, overLimit(no)
	}
	return &clientLease{e}, edge.Allowance{Requests: quota(e.Requests), Tokens: quota(e.Tokens), Concurrent: mine.Concurrent}
}

// admitLookup holds lookups to a limit of concurrency of their own, as large as that of other requests. No tenant's name begins with a zero byte.
func (c clientLimits) admitLookup(now time.Time, tenant string, mine limits.Limits) (edge.Lease, edge.Allowance) {
	e, no := c.limiter.Admit(now, "\x00lookups\x00"+tenant, limits.Limits{Concurrent: mine.Concurrent}, 0)
	if no != nil {
		return nil, overLimit(no)
	}
	lease, most := &clientLease{e}, mine.Concurrent
	mine.Concurrent = 0
	if e, no = c.limiter.Admit(now, tenant, mine, 0); no != nil {
		lease.Done(0)
		return nil, overLimit(no)
	}
	e.Done(now, 0) // it counts as a request, but not among those under way
	return lease, edge.Allowance{Requests: quota(e.Requests), Tokens: quota(e.Tokens), Concurrent: most}
}

func overLimit(no *limits.Refusal) edge.Allowance {
	return edge.Allowance{
		Requests: quota(no.Requests), Tokens: quota(no.Tokens),
		Over: no.Limit.String(), Max: no.Max, RetryAfter: no.After,
	}
}

func quota(r limits.Room) edge.Quota {
	return edge.Quota{Limit: r.Limit, Left: r.Left, Reset: r.Full}
}

type clientLease struct{ lease limits.Lease }

// Done implements edge.Lease.
func (c *clientLease) Done(tokens int) { c.lease.Done(time.Now(), tokens) }
