package keys

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"pdrouter/auth/internal/files"
)

const maxJWKSHeader = 64 << 10 // bytes

// fetch asks for the set once. It takes no longer than the timeout and reads no more than a set may have.
func (j *JWKS) fetch(ctx context.Context) (ParsedJWKS, error) {
	if j.cfg.file() {
		b, _, err := files.ReadBounded(j.cfg.URL, maxJWKS)
		if err != nil {
			return ParsedJWKS{}, err
		}
		return ParseJWKS(b)
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	b, err := j.get(ctx)
	if err != nil {
		return ParsedJWKS{}, err
	}
	return ParseJWKS(b)
}

// get calls the transport itself, so that no redirect is followed.
func (j *JWKS) get(ctx context.Context) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/jwk-set+json, application/json")
	r.Header.Set("User-Agent", "pdrouter")
	if j.cfg.TokenFile != "" {
		b, _, err := files.ReadBounded(j.cfg.TokenFile, MaxFile)
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		token := strings.TrimSpace(string(b))
		if token == "" || strings.ContainsAny(token, " \t\r\n\x00") {
			return nil, fmt.Errorf("token file %s has not one token", j.cfg.TokenFile)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	transport, done, err := j.roundTripper()
	if err != nil {
		return nil, err
	}
	defer done()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %d; want 200", answer.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxJWKS+1))
	if err != nil {
		return nil, err
	}
	return b, nil
}

// roundTripper returns the given transport, or a new one: it lives for one question, so that neither a connection nor
// an authority that has been replaced is kept.
func (j *JWKS) roundTripper() (http.RoundTripper, func(), error) {
	if j.transport != nil {
		return j.transport, func() {}, nil
	}
	authorities, err := loadAuthorities(j.cfg.CAFile)
	if err != nil {
		return nil, nil, err
	}
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		TLSClientConfig:        &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true, // a small answer that unpacks to a large one
		MaxResponseHeaderBytes: maxJWKSHeader,
	}
	return t, t.CloseIdleConnections, nil
}

// loadAuthorities returns nil, the system's, for no file.
func loadAuthorities(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	b, _, err := files.ReadBounded(path, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("ca file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, errors.New("ca file " + path + " has no certificate")
	}
	return pool, nil
}
