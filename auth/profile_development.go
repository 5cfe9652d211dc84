package auth

import "pdrouter/auth/keys"

// Development returns the rules for tokens of ours that are signed with a development secret. A verifier with it has no
// other issuer.
func Development(issuer string, secret *keys.Key) Profile {
	trusted, _ := keys.Trust(secret) // fails for none alone
	return Profile{Issuer: issuer, Keys: trusted, Development: true}
}
