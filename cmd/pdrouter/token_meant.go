package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pdrouter/auth"
)

// usualLifetime is the longest that a token may live where max_lifetime is not set.
const usualLifetime = 24 * time.Hour

// mintWarnings are what is allowed of a token and seldom meant.
func mintWarnings(g auth.Grant) []string {
	var all []string
	words := map[string][]string{
		auth.MetadataAudience: {auth.WriteScope, auth.ReadScope, auth.PlaneScope},
		auth.AdminAudience:    {auth.ReadScope, auth.WriteScope, auth.EnginesScope},
	}[g.Audience]
	for _, scope := range g.Scopes {
		if len(words) > 0 && !slices.Contains(words, scope) {
			all = append(all, fmt.Sprintf("the scope %s gives nothing; those of %s are %s", scope, g.Audience, strings.Join(words, ", ")))
		}
	}
	if len(words) > 0 && len(g.Scopes) == 0 {
		all = append(all, fmt.Sprintf("without --scope the token may do nothing; the scopes of %s are %s", g.Audience, strings.Join(words, ", ")))
	}
	if g.Role != "" && g.Engine == "" {
		all = append(all, "--role without --engine: the bearer has no engine to publish for, and reads those of the roles that pair with it")
	}
	if g.TTL > usualLifetime {
		all = append(all, fmt.Sprintf("the token lives %v: it is refused wherever max_lifetime is not set above %v", g.TTL, usualLifetime))
	}
	return all
}

// notMeant says what an operator has taken for a token of this issuer and audience, nil if nothing shows. It trusts nothing
// that the token says.
func notMeant(token, issuer, audience string) error {
	if auth.IsAPIKey(token) {
		return errors.New("token verify: this is an API key, no token")
	}
	_, claims, err := auth.Inspect(token)
	if err != nil {
		return nil // verifying says more
	}
	if got, ok := claims["iss"].(string); ok && got != issuer {
		return fmt.Errorf("token verify: refused: iss is %s; want %s", got, issuer)
	}
	var audiences []string
	switch aud := claims["aud"].(type) {
	case string:
		audiences = []string{aud}
	case []any:
		for _, one := range aud {
			audiences = append(audiences, fmt.Sprint(one))
		}
	}
	if len(audiences) > 0 && !slices.Contains(audiences, audience) {
		return fmt.Errorf("token verify: refused: a token for %s; you asked for %s", strings.Join(audiences, ", "), audience)
	}
	return nil
}
