package configfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/field"
	"pdrouter/internal/reload"
)

// The kinds of issuers.
const (
	KindOwn        = "pdrouter"
	KindKubernetes = "kubernetes"
	KindSPIFFE     = "spiffe"
)

// IssuerAuth is one issuer whose tokens are accepted, by rules of its own. Exactly one of Keys, JWKS and
// DevelopmentSecretFile says with what its tokens are signed.
type IssuerAuth struct {
	Issuer string `yaml:"issuer"` // required: what the tokens' iss must be
	// Kind is what its tokens look like: pdrouter (default; made by pdrouter token mint, or like them), kubernetes
	// (service accounts' tokens as projected into pods) or spiffe (JWT-SVIDs with an iss).
	Kind string          `yaml:"kind"`
	Keys []string        `yaml:"keys"` // public keys: .jwk or .pem files, or folders of them
	JWKS keys.JWKSConfig `yaml:"jwks"` // or where the issuer publishes them
	// DevelopmentSecretFile has 32 bytes or more with which tokens are signed (HS256): whoever checks them can make them.
	// It stands alone, and only where nobody but this machine reaches the listener.
	DevelopmentSecretFile string             `yaml:"development_secret_file"`
	Subjects              []auth.SubjectRule `yaml:"subjects"`     // of kubernetes and spiffe: what its subjects may do; the first that fits decides
	Leeway                time.Duration      `yaml:"leeway"`       // for clocks that differ; default 30s
	MaxLifetime           time.Duration      `yaml:"max_lifetime"` // of a token; default 24h
}

// profile returns the rules, with keys that have been read or none.
func (i IssuerAuth) profile(keys keys.Source) auth.Profile {
	p := auth.Profile{Issuer: i.Issuer, Keys: keys, Subjects: i.Subjects}
	switch i.Kind {
	case KindKubernetes:
		p = auth.Kubernetes(i.Issuer, keys, i.Subjects...)
	case KindSPIFFE:
		p = auth.SPIFFE(i.Issuer, keys, i.Subjects...)
	}
	p.Leeway, p.MaxLifetime = i.Leeway, i.MaxLifetime
	return p
}

// Validate reports every mistake. audience is what its tokens are for.
func (i IssuerAuth) Validate(audience string) error {
	var errs []error
	switch i.Kind {
	case "", KindOwn, KindKubernetes, KindSPIFFE:
		errs = append(errs, i.profile(nil).Validate(audience))
	default:
		errs = append(errs, field.Errorf("kind", "is %q; want pdrouter, kubernetes or spiffe", i.Kind))
	}
	errs = append(errs, notEmpty("keys", i.Keys))
	sources := 0
	for _, set := range []bool{len(i.Keys) > 0, i.JWKS != keys.JWKSConfig{}, i.DevelopmentSecretFile != ""} {
		if set {
			sources++
		}
	}
	if sources != 1 {
		errs = append(errs, field.Errorf("issuer", "has %d of keys, jwks and development_secret_file; want exactly one", sources))
	}
	if (i.JWKS != keys.JWKSConfig{}) {
		errs = append(errs, field.Under("jwks", i.JWKS.Validate()))
	}
	if i.DevelopmentSecretFile != "" && i.Kind != "" && i.Kind != KindOwn {
		errs = append(errs, field.Errorf("development_secret_file", "is set for the kind %s; want it for our own tokens only", i.Kind))
	}
	return errors.Join(errs...)
}

// validateIssuers checks each issuer, and what they may not be beside each other.
func (t TokenAuth) validateIssuers(key, audience string) error {
	var errs []error
	seen := map[string]bool{}
	if len(t.Keys) > 0 {
		seen[t.Issuer] = true
	}
	for n, i := range t.Issuers {
		at := Element(key, n)
		errs = append(errs, field.Under(at, i.Validate(audience)))
		if i.Issuer != "" && seen[i.Issuer] {
			errs = append(errs, field.Errorf(at+".issuer", "is %q, which stands here twice; want each issuer once", i.Issuer))
		}
		seen[i.Issuer] = true
		if i.DevelopmentSecretFile != "" && (len(t.Issuers) > 1 || len(t.Keys) > 0) {
			errs = append(errs, field.Errorf(at+".development_secret_file", "is set beside other keys; want it alone"))
		}
	}
	return errors.Join(errs...)
}

// validateDevelopment keeps development secrets to listeners that nobody else reaches.
func (a Auth) validateDevelopment(l Listen) error {
	var errs []error
	for _, at := range []struct {
		key, listener, address string
		of                     TokenAuth
	}{
		{"auth.clients", "listen.clients", l.Clients, a.Clients.TokenAuth},
		{"auth.agents", "listen.agents", l.Agents, a.Agents},
		{"auth.admins", "listen.operations", l.Operations, a.Admins},
	} {
		for n, i := range at.of.Issuers {
			if i.DevelopmentSecretFile == "" || at.address == "" {
				continue
			}
			if host, _, err := net.SplitHostPort(at.address); err != nil || !loopback(host) {
				errs = append(errs, field.Errorf(Element(at.key+".issuers", n)+".development_secret_file", "is set, and others can reach %s at %q; want a loopback address there, or keys", at.listener, at.address))
			}
		}
	}
	return errors.Join(errs...)
}

// Development returns the sections whose tokens are signed with a secret.
func (a Auth) Development() []string {
	var all []string
	for _, at := range []struct {
		key string
		of  TokenAuth
	}{{"auth.clients", a.Clients.TokenAuth}, {"auth.agents", a.Agents}, {"auth.admins", a.Admins}} {
		for _, i := range at.of.Issuers {
			if i.DevelopmentSecretFile != "" {
				all = append(all, at.key)
			}
		}
	}
	return all
}

// DevelopmentWarning is what check and serve say of it.
func DevelopmentWarning(section string) string {
	return "DEVELOPMENT ONLY: " + section + " takes tokens signed with a shared secret (HS256): whoever can check them can make them"
}

// Profiles reads the keys of the issuers, or finds where to ask for them.
func (t TokenAuth) Profiles(audience string, files *reload.Credentials) ([]auth.Profile, error) {
	var all []auth.Profile
	for _, i := range t.Issuers {
		var source keys.Source
		switch {
		case i.DevelopmentSecretFile != "":
			secret, err := keys.DevelopmentSecret(i.DevelopmentSecretFile)
			if err != nil {
				return nil, err
			}
			p := auth.Development(i.Issuer, secret)
			p.Leeway, p.MaxLifetime = i.Leeway, i.MaxLifetime
			all = append(all, p)
			continue
		case len(i.Keys) > 0:
			keys, err := keys.LoadTrusted(i.Keys...)
			if err != nil {
				return nil, err
			}
			files.Add(keys)
			source = keys
		default:
			set, err := keys.NewJWKS(i.JWKS, nil, files.Logger().With("issuer", i.Issuer))
			if err != nil {
				return nil, err
			}
			files.AddSet(reload.IssuerSet{JWKS: set, Audience: audience, Issuer: i.Issuer})
			source = set
		}
		all = append(all, i.profile(source))
	}
	return all, nil
}

// pathsOf returns the paths among the issuers of a section.
func (t TokenAuth) pathsOf(section string) []pathAt {
	var all []pathAt
	for n := range t.Issuers {
		i, at := &t.Issuers[n], Element(section+".issuers", n)
		for k := range i.Keys {
			all = append(all, pathAt{Element(at+".keys", k), &i.Keys[k]})
		}
		if !strings.Contains(i.JWKS.URL, ":") { // a file, then
			all = append(all, pathAt{at + ".jwks.url", &i.JWKS.URL})
		}
		all = append(all, pathAt{at + ".jwks.ca_file", &i.JWKS.CAFile}, pathAt{at + ".jwks.token_file", &i.JWKS.TokenFile},
			pathAt{at + ".development_secret_file", &i.DevelopmentSecretFile})
	}
	return all
}

// DevelopmentWarnings are what a running gateway says of secrets for development.
func (a Auth) DevelopmentWarnings() []string {
	var all []string
	for _, section := range a.Development() {
		all = append(all, DevelopmentWarning(section))
	}
	return all
}

// SecretsDigest is a digest of the secrets for development, which are read once. Of one that cannot be read it says nothing: it
// is found to be wrong where it is used.
func (t TokenAuth) SecretsDigest() string {
	h := sha256.New()
	for _, i := range t.Issuers {
		if i.DevelopmentSecretFile != "" {
			b, _ := os.ReadFile(i.DevelopmentSecretFile)
			fmt.Fprintf(h, "%d ", len(b))
			h.Write(b)
		}
	}
	return string(h.Sum(nil))
}
