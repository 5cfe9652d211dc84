package auth

// Development returns the rules for tokens of ours that are signed with a development secret. A verifier with it has no
// other issuer.
func Development(issuer string, secret *Key) Profile {
	keys := &Keys{}
	keys.set.Store(&keySet{byID: map[string]*Key{secret.ID: secret}})
	return Profile{Issuer: issuer, Keys: keys, Development: true}
}
