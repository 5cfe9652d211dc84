package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/internal/field"
)

// Profile is the rules for the tokens of one issuer. A token is checked by the profile of its issuer alone.
//
// Without Types the issuer is one of ours: what its tokens claim is believed. With them it is a foreign one, which says
// who a caller is and never what they may do: that is for Subjects.
type Profile struct {
	Issuer        string        // what iss must be
	Keys          keys.Source   // trusted for this issuer and no other
	Algorithms    []string      // those its keys may be for; default EdDSA, ES256 and RS256
	Types         []string      // what typ may be, "" for tokens without; default the one type of ours for the audience
	NoIssuedAt    bool          // iat may be missing
	SoleAudience  bool          // aud must be ours and nothing else
	SubjectPrefix string        // what every sub begins with
	Leeway        time.Duration // for clocks that differ; default 30s
	MaxLifetime   time.Duration // from now, or iat, to exp; default 24h
	Development   bool          // its one key is a secret that the bearer's side has too
	Subjects      []SubjectRule // what a foreign issuer's subjects may do; the first that fits decides
}

// Kubernetes returns the rules for service accounts' tokens, as a cluster projects them into pods.
func Kubernetes(issuer string, trusted keys.Source, subjects ...SubjectRule) Profile {
	return Profile{
		Issuer: issuer, Keys: trusted, Algorithms: []string{keys.RS256, keys.ES256}, Types: []string{"", "JWT"},
		SubjectPrefix: "system:serviceaccount:", Subjects: subjects,
	}
}

// SPIFFE returns the rules for JWT-SVIDs. Their issuer must put iss into them, which the standard leaves open.
func SPIFFE(issuer string, trusted keys.Source, subjects ...SubjectRule) Profile {
	return Profile{
		Issuer: issuer, Keys: trusted, Algorithms: []string{keys.RS256, keys.ES256}, Types: []string{"", "JWT", "JOSE"},
		NoIssuedAt: true, SoleAudience: true, SubjectPrefix: "spiffe://", Subjects: subjects,
	}
}

func (p Profile) withDefaults() Profile {
	if p.Leeway == 0 {
		p.Leeway = 30 * time.Second
	}
	if p.MaxLifetime == 0 {
		p.MaxLifetime = 24 * time.Hour
	}
	if len(p.Algorithms) == 0 {
		p.Algorithms = []string{keys.EdDSA, keys.ES256, keys.RS256}
	}
	if p.Development {
		p.Algorithms = []string{keys.HS256}
	}
	return p
}

// Validate reports every value that makes no sense for tokens of this audience, joined. It does not look at Keys. Zero
// durations mean the default; an empty issuer would check nothing and is refused.
func (p Profile) Validate(audience string) error {
	var errs []error
	bad := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }
	if p.Issuer == "" {
		bad("issuer", "is empty")
	}
	if strings.Contains(p.Issuer, "|") {
		bad("issuer", "is %q; want none with a |, which ends it in the names of tenants", p.Issuer)
	}
	if p.Leeway < 0 || p.Leeway > 5*time.Minute {
		bad("leeway", "is %v; want 0 to 5m", p.Leeway)
	}
	if p.MaxLifetime < 0 {
		bad("max_lifetime", "is %v; want more than 0", p.MaxLifetime)
	}
	for _, alg := range p.Algorithms {
		if alg != keys.EdDSA && alg != keys.ES256 && alg != keys.RS256 {
			bad("algorithms", "has %q; want EdDSA, ES256 or RS256", alg)
		}
	}
	if p.foreign() && len(p.Subjects) == 0 {
		bad("subjects", "is empty; want what the subjects of this issuer may do")
	}
	if !p.foreign() && len(p.Subjects) > 0 {
		bad("subjects", "is for issuers of another kind; our own tokens say what they permit")
	}
	for i, s := range p.Subjects {
		errs = append(errs, field.Under(fmt.Sprintf("subjects[%d]", i), s.validate(audience)))
		if !strings.HasPrefix(s.Subject, p.SubjectPrefix) {
			bad(fmt.Sprintf("subjects[%d].subject", i), "is %q; want it to begin with %s", s.Subject, p.SubjectPrefix)
		}
	}
	return errors.Join(errs...)
}

// foreign reports whether the issuer's tokens say only who their bearer is.
func (p Profile) foreign() bool { return len(p.Types) > 0 }

// issuer is a profile made ready for checking.
type issuer struct {
	Profile
	rules []rule
}

func newIssuer(p Profile, audience string) (*issuer, error) {
	if err := p.Validate(audience); err != nil {
		return nil, err
	}
	if p.Keys == nil {
		return nil, errors.New("no keys")
	}
	i := &issuer{Profile: p.withDefaults()}
	for _, s := range p.Subjects {
		r, err := s.compile()
		if err != nil {
			return nil, err
		}
		i.rules = append(i.rules, r)
	}
	return i, nil
}

// takes reports whether a token of this typ may be one of the issuer's, for the audience.
func (i *issuer) takes(typ, audience string) bool {
	if i.foreign() {
		return slices.Contains(i.Types, typ)
	}
	want := typeOf(audience)
	return typ == want || want == "at+jwt" && typ == "application/at+jwt" // RFC 9068 has two spellings
}

// key returns the key of that id, if it may be used for this algorithm. The error is an *Error.
func (i *issuer) key(kid, alg string, at moment) (*keys.Key, *keys.Set, error) {
	set := i.Keys.Current()
	if set.Stale(at.mono) {
		return nil, nil, &Error{Code: JWKSStale, Err: fmt.Errorf("the keys of %s could not be asked for since they were last believed", i.Issuer)}
	}
	key, ok := set.Find(kid)
	if !ok {
		i.Keys.Missed(kid)
		return nil, nil, invalid(fmt.Errorf("unknown key %q of %s", kid, i.Issuer))
	}
	if alg != key.Algorithm() {
		return nil, nil, invalid(fmt.Errorf("alg is %q; key %s is for %s", alg, kid, key.Algorithm()))
	}
	if !slices.Contains(i.Algorithms, alg) {
		return nil, nil, invalid(fmt.Errorf("alg is %s; want one of %s", alg, strings.Join(i.Algorithms, ", ")))
	}
	return key, set, nil
}
