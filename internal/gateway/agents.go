package gateway

import (
	"fmt"
	"net/http"

	"pdrouter/auth"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
)

// AuthorizeAgents lets package auth decide about the metadata routes, which do not know it.
func AuthorizeAgents(a *auth.Agents) routes.Authorizer {
	return routes.AuthorizerFunc(func(r *http.Request, want routes.Access) (routes.Caller, error) {
		p, err := a.Authorize(r, auth.Wanted{
			Action: string(want.Action), Engine: want.Engine, Rank: want.Rank.String(), Role: string(want.Role), Apart: want.Apart,
		})
		if err != nil {
			return routes.Caller{Subject: p.Subject}, err
		}
		c := routes.Caller{Subject: p.Subject, Engine: p.Engine, Role: metadata.Role(p.Role), Reads: p.Reads, Key: p.Key}
		if p.Size != "" {
			if c.Size, err = metadata.ParseRank(p.Size); err != nil { // as below
				return routes.Caller{Subject: p.Subject}, fmt.Errorf("token of %s: %w", p.Subject, err)
			}
		}
		for _, s := range p.Ranks {
			rank, err := metadata.ParseRank(s)
			if err != nil { // the verifier has refused such a token
				return routes.Caller{Subject: p.Subject}, fmt.Errorf("token of %s: %w", p.Subject, err)
			}
			c.Ranks = append(c.Ranks, rank)
		}
		return c, nil
	})
}
