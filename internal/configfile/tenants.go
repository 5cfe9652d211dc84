package configfile

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"slices"

	"pdrouter/auth"
	"pdrouter/internal/field"
	"pdrouter/internal/limits"
)

// Tenants says what clients may use. Requests of one tenant are counted together: those of all keys with one name, or of tokens
// with one issuer and subject. A limit comes from the credentials, else from the entry for the name here, else from the default.
type Tenants struct {
	Default auth.Limits            `yaml:"default"` // where nothing else sets a limit; 0 is no limit
	Named   map[string]auth.Limits `yaml:"named"`   // by an API key's name, or by issuer|subject
}

// Validate reports every mistake, each by its key.
func (c Tenants) Validate() error {
	errs := []error{field.Under("tenants.default", c.Default.Validate())}
	for _, name := range slices.Sorted(maps.Keys(c.Named)) {
		errs = append(errs, field.Under("tenants.named."+name, c.Named[name].Validate()))
	}
	return errors.Join(errs...)
}

// Warnings are of limits that bound less than they seem to.
func (c Tenants) Warnings() []string {
	var all []string
	warn := func(key string, l auth.Limits) {
		if l.Tokens > 0 && l.Concurrent == 0 && c.Default.Concurrent == 0 {
			all = append(all, key+" has tokens_per_minute without concurrent: any number of chats without max_tokens may begin at once, "+
				"and what they use is known when they end")
		}
	}
	warn("tenants.default", c.Default)
	for _, name := range slices.Sorted(maps.Keys(c.Named)) {
		warn("tenants.named."+name, c.Named[name])
	}
	return all
}

// Of returns what the caller may use.
func (c Tenants) Of(who auth.Principal) limits.Limits {
	named := c.Named[who.Tenant]
	return limits.Limits{
		Requests:   cmp.Or(who.Limits.Requests, named.Requests, c.Default.Requests),
		Tokens:     cmp.Or(who.Limits.Tokens, named.Tokens, c.Default.Tokens),
		Concurrent: cmp.Or(who.Limits.Concurrent, named.Concurrent, c.Default.Concurrent),
	}
}

// validateAdmin checks the listener for administrators, and what it needs of other sections.
func (c File) validateAdmin() error {
	var errs []error
	if c.Listen.Admin == "" {
		return errors.Join(errs...)
	}
	if host, _, err := net.SplitHostPort(c.Listen.Admin); err == nil && !loopback(host) && !c.Listen.AdminTLS.on() {
		errs = append(errs, field.Errorf("listen.admin", "is %q, which others can reach, without TLS; want listen.admin_tls with cert_file and key_file, or a loopback address", c.Listen.Admin))
	}
	if !c.Auth.Admins.On() {
		errs = append(errs, field.Errorf("auth.admins.keys", "is missing; want the public keys of administrators' tokens, because listen.admin is set"))
	}
	return errors.Join(errs...)
}

// validateReclaim reports what is wrong with the section, if anything.
func (c File) validateReclaim() error {
	switch c.Reclaim {
	case "auto", "off", "":
		return nil
	}
	return field.Errorf("reclaim", "is %q; want auto or off", c.Reclaim)
}
