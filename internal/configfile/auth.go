package configfile

import (
	"errors"
	"strings"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/internal/field"
	"pdrouter/internal/reload"
)

// Auth says who may call. Every secret is in a file of its own, which is named here.
type Auth struct {
	Clients ClientsAuth `yaml:"clients"`
	Agents  TokenAuth   `yaml:"agents"`
	// Admins are those who may use /requests, /metrics and the details of /ready, on listen.operations. Tokens have the
	// audience pdrouter-admin; looking needs the scope read. Default: whoever reaches that listener.
	Admins  TokenAuth   `yaml:"admins"`
	Records RecordsAuth `yaml:"records"`
	// ControlTokenFile has the token that this gateway shows to engines' control routes (audience
	// pdrouter-metadata, scope plane). Read again when it changes. Default: none is sent.
	ControlTokenFile string `yaml:"control_token_file"`
}

// ClientsAuth is about clients of the OpenAI routes. With neither API keys nor keys for tokens, everybody may call.
type ClientsAuth struct {
	APIKeysFile string           `yaml:"api_keys_file"` // digests, made by pdrouter keys
	TokenAuth   `yaml:",inline"` // for clients that bear tokens
}

// TokenAuth says which signed tokens are accepted.
type TokenAuth struct {
	Keys        []string      `yaml:"keys"`         // public keys: .jwk or .pem files, or folders of them
	Issuer      string        `yaml:"issuer"`       // required with keys: what the tokens' iss must be
	Leeway      time.Duration `yaml:"leeway"`       // for clocks that differ; default 30s
	MaxLifetime time.Duration `yaml:"max_lifetime"` // of a token; default 24h
	Issuers     []IssuerAuth  `yaml:"issuers"`      // more issuers, each with rules of its own
}

// RecordsAuth is about the signatures of metadata records, and of tickets. Without a key, records are kept as they come,
// and no ticket is signed.
type RecordsAuth struct {
	KeyFile string   `yaml:"key_file"` // this gateway's private key
	Trusted []string `yaml:"trusted"`  // public keys of all gateways, this one's included: files or folders
}

// On reports whether clients must prove who they are.
func (c ClientsAuth) On() bool { return c.APIKeysFile != "" || c.TokenAuth.On() }

// On reports whether any token could be accepted.
func (t TokenAuth) On() bool { return len(t.Keys) > 0 || len(t.Issuers) > 0 }

// issuerNames returns whose tokens are accepted, for people.
func (t TokenAuth) issuerNames() string {
	var all []string
	if len(t.Keys) > 0 {
		all = append(all, t.Issuer)
	}
	for _, i := range t.Issuers {
		all = append(all, i.Issuer)
	}
	return strings.Join(all, ", ")
}

func (a Auth) validate() error {
	errs := []error{
		a.Clients.validate("auth.clients", auth.ClientAudience),
		a.Agents.validate("auth.agents", auth.MetadataAudience),
		a.Admins.validate("auth.admins", auth.AdminAudience),
	}
	if a.Records.KeyFile != "" && len(a.Records.Trusted) == 0 {
		errs = append(errs, field.Errorf("auth.records.trusted", "is missing; want the public keys of all gateways, this one's included"))
	}
	errs = append(errs, notEmpty("auth.records.trusted", a.Records.Trusted))
	return errors.Join(errs...)
}

func (t TokenAuth) validate(key, audience string) error {
	var errs []error
	if len(t.Keys) > 0 {
		errs = append(errs, field.Under(key, t.verifierConfig(audience).Validate()))
	} else if t.Issuer != "" {
		errs = append(errs, field.Errorf(key+".keys", "is missing; want the public keys of %s", t.Issuer))
	}
	errs = append(errs, notEmpty(key+".keys", t.Keys), notEmpty(key+".issuers", t.Issuers))
	return errors.Join(append(errs, t.validateIssuers(key+".issuers", audience))...)
}

// notEmpty refuses a list that stands there without anything in it. Like one that is missing it would mean that nothing is
// checked, and who writes it may have meant that nobody is let in.
func notEmpty[T any](key string, list []T) error {
	if list != nil && len(list) == 0 {
		return field.Errorf(key, "is empty; want something in it, or nothing of the kind")
	}
	return nil
}

func (t TokenAuth) verifierConfig(audience string) auth.VerifierConfig {
	return auth.VerifierConfig{Issuer: t.Issuer, Audience: audience, Leeway: t.Leeway, MaxLifetime: t.MaxLifetime}
}

// Verifier returns nil if no keys and no issuers are named.
func (t TokenAuth) Verifier(audience string, files *reload.Credentials) (*auth.Verifier, error) {
	if !t.On() {
		return nil, nil
	}
	others, err := t.Profiles(audience, files)
	if err != nil {
		return nil, err
	}
	if len(t.Keys) == 0 {
		return auth.NewVerifier(auth.VerifierConfig{Audience: audience}, nil, others...)
	}
	keys, err := keys.LoadTrusted(t.Keys...)
	if err != nil {
		return nil, err
	}
	files.Add(keys)
	return auth.NewVerifier(t.verifierConfig(audience), keys, others...)
}

// NewClients reads the files that authenticate clients and adds them to files; nil means that everybody may call.
func (a Auth) NewClients(files *reload.Credentials) (*auth.Clients, error) {
	if !a.Clients.On() {
		return nil, nil
	}
	var cfg auth.ClientsConfig
	var err error
	if cfg.Verifier, err = a.Clients.Verifier(auth.ClientAudience, files); err != nil {
		return nil, err
	}
	if a.Clients.APIKeysFile != "" {
		if cfg.APIKeys, err = auth.LoadAPIKeys(a.Clients.APIKeysFile); err != nil {
			return nil, err
		}
		files.Add(cfg.APIKeys)
	}
	return auth.NewClients(cfg)
}

// NewAgents reads the keys that authenticate agents and adds them to files; nil if there are none and so no agents'
// listener.
func (a Auth) NewAgents(files *reload.Credentials) (*auth.Agents, error) {
	v, err := a.Agents.Verifier(auth.MetadataAudience, files)
	if v == nil || err != nil {
		return nil, err
	}
	return auth.NewAgents(v)
}

// NewAdmins reads the keys that authenticate administrators and adds them to files. It returns nil if the operations' listener is open
// to all who reach it.
func (a Auth) NewAdmins(files *reload.Credentials) (*auth.Admins, error) {
	v, err := a.Admins.Verifier(auth.AdminAudience, files)
	if v == nil || err != nil {
		return nil, err
	}
	return auth.NewAdmins(v)
}

// NewRecords reads the keys that sign and check records, and adds them to files; nil if there are none.
func (a Auth) NewRecords(files *reload.Credentials) (*records.Records, error) {
	if len(a.Records.Trusted) == 0 {
		return nil, nil
	}
	trusted, err := keys.LoadTrusted(a.Records.Trusted...)
	if err != nil {
		return nil, err
	}
	files.Add(trusted)
	if a.Records.KeyFile == "" {
		return records.New(nil, trusted)
	}
	r, err := records.Load(a.Records.KeyFile, trusted)
	if err != nil {
		return nil, err
	}
	files.Add(r)
	return r, nil
}
