package keys

import (
	"errors"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"pdrouter/internal/field"
)

// JWKSConfig says where an issuer's key set (RFC 7517 §5) is, and how often it is asked for. Nothing that a server
// answers changes these bounds.
type JWKSConfig struct {
	// URL is where the set is: https, or http on a loopback address, or the path of a file. Required. Redirects are not
	// followed.
	URL string `yaml:"url"`
	// Refresh is the time from one good answer to the next question, and so how long a withdrawn key is still accepted.
	// Each time is shortened by up to a tenth, so that gateways do not ask together. Default 5m; 1s to 24h.
	Refresh time.Duration `yaml:"refresh"`
	// MinInterval is the least time between two questions, whatever happens: an unknown key id or a failure may bring a
	// question forward, but not nearer than this. Default 10s; 1s to refresh.
	MinInterval time.Duration `yaml:"min_interval"`
	// MaxStale is how long the last good set is used while the issuer cannot be reached. After it the issuer's tokens are
	// answered 503, until it can be asked again. An attacker who keeps the gateway from the issuer can use a
	// withdrawn key for this long; a shorter outage costs nothing. Default 24h, the longest life of a token by
	// default: no token from before the outage is valid after it. More than refresh, and at most 168h.
	MaxStale time.Duration `yaml:"max_stale"`
	// Timeout is for one whole question, from the connection to the last byte. Default 5s; at most 1m.
	Timeout time.Duration `yaml:"timeout"`
	// CAFile has the certificates (PEM) of the authorities that the server's own is checked against, in place of the
	// system's; for an issuer inside a cluster. Read again for each question. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// TokenFile has a token that is shown to the server as Bearer, as the API server of Kubernetes wants. Read again for
	// each question. Default: none.
	TokenFile string `yaml:"token_file"`
}

// WithDefaults returns the configuration with every zero time replaced by its default.
func (c JWKSConfig) WithDefaults() JWKSConfig {
	for _, d := range []struct {
		to       *time.Duration
		standard time.Duration
	}{
		{&c.Refresh, 5 * time.Minute}, {&c.MinInterval, 10 * time.Second},
		{&c.MaxStale, 24 * time.Hour}, {&c.Timeout, 5 * time.Second},
	} {
		if *d.to == 0 {
			*d.to = d.standard
		}
	}
	return c
}

// Validate reports every value that makes no sense. Zero times mean the default.
func (c JWKSConfig) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }
	if err := c.validateURL(); err != nil {
		errs = append(errs, err)
	}
	if c.Refresh < time.Second || c.Refresh > 24*time.Hour {
		bad("refresh", "is %v; want 1s to 24h", c.Refresh)
	}
	if c.MinInterval < time.Second || c.MinInterval > c.Refresh {
		bad("min_interval", "is %v; want 1s to refresh, %v", c.MinInterval, c.Refresh)
	}
	if c.MaxStale <= c.Refresh || c.MaxStale > 7*24*time.Hour {
		bad("max_stale", "is %v; want more than refresh, %v, and at most 168h", c.MaxStale, c.Refresh)
	}
	if c.Timeout < 0 || c.Timeout > time.Minute {
		bad("timeout", "is %v; want more than 0 and at most 1m", c.Timeout)
	}
	return errors.Join(errs...)
}

func (c JWKSConfig) validateURL() error {
	if c.URL == "" {
		return field.Errorf("url", "is missing; want https://…, or the path of a file")
	}
	if c.file() {
		if c.CAFile != "" || c.TokenFile != "" {
			return field.Errorf("ca_file", "and token_file are of no use with a key set in a file")
		}
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return field.Errorf("url", "cannot be read as one") // the error would quote it, and what may be a password in it
	}
	switch {
	case u.User != nil:
		return field.Errorf("url", "has a user or password in it; want a token_file")
	case u.Hostname() == "" || u.Fragment != "":
		return field.Errorf("url", "is %s; want a host and no fragment", c.shown())
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return field.Errorf("url", "has the scheme %s; want https", u.Scheme)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return field.Errorf("url", "is %s; want https, or http on a loopback address: who can change the answer can sign tokens", c.shown())
	}
	return nil
}

// shown returns where the set is without the query, which may have a secret, and without what else is no part of the way.
func (c JWKSConfig) shown() string {
	if c.file() {
		return c.URL
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// file reports whether the set is in a file.
func (c JWKSConfig) file() bool { return filepath.IsAbs(c.URL) || !strings.Contains(c.URL, ":") }
