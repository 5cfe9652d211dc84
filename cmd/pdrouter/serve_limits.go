package main

import (
	"time"

	"pdrouter/auth"
	"pdrouter/internal/limits"
	"pdrouter/router"
)

// clientLimits are limits as the router wants them.
type clientLimits struct {
	limiter *limits.Limiter
	tenants tenantsConfig
}

// Admit implements router.Limiter.
func (c clientLimits) Admit(who auth.Principal, expected int) (router.Lease, router.Allowance) {
	mine := c.tenants.of(who)
	if expected == router.ExpectedLookup {
		mine.Concurrent, expected = 0, 0
	}
	if mine == (limits.Limits{}) {
		return nil, router.Allowance{}
	}
	e, no := c.limiter.Admit(time.Now(), who.Tenant, mine, expected)
	if no != nil {
		return nil, router.Allowance{
			Requests: quota(no.Requests), Tokens: quota(no.Tokens),
			Over: no.Limit.String(), Max: no.Max, RetryAfter: no.After,
		}
	}
	return &clientLease{e}, router.Allowance{Requests: quota(e.Requests), Tokens: quota(e.Tokens), Concurrent: mine.Concurrent}
}

func quota(r limits.Room) router.Quota {
	return router.Quota{Limit: r.Limit, Left: r.Left, Reset: r.Full}
}

type clientLease struct{ lease limits.Lease }

// Done implements router.Lease.
func (c *clientLease) Done(tokens int) { c.lease.Done(time.Now(), tokens) }
