package main

import (
	"time"

	"pdrouter/auth"
	"pdrouter/internal/limits"
	"pdrouter/router"
)

// limits gives the router what bounds each client. Gateways with one Redis count together.
func (g *gateway) limits(l *loaded, parts *router.Parts) error {
	g.limiter = limits.New(g.redis, l.Metadata.Redis.WithDefaults().Prefix, g.log)
	parts.Limits = clientLimits{g.limiter, l.Tenants}
	return nil
}

// clientLimits are limits as the router wants them.
type clientLimits struct {
	limiter *limits.Limiter
	tenants tenantsConfig
}

// Admit implements router.Limiter.
func (c clientLimits) Admit(who auth.Principal, expected int) (router.Lease, router.Allowance) {
	mine := c.tenants.of(who)
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
	return &clientLease{e}, router.Allowance{Requests: quota(e.Requests), Tokens: quota(e.Tokens)}
}

func quota(r limits.Room) router.Quota {
	return router.Quota{Limit: r.Limit, Left: r.Left, Reset: r.Full}
}

type clientLease struct{ lease limits.Lease }

// Done implements router.Lease.
func (c *clientLease) Done(tokens int) { c.lease.Done(time.Now(), tokens) }
