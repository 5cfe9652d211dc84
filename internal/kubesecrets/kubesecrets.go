// Package kubesecrets makes the Secrets of a gateway in Kubernetes: keys, tokens, passwords and a certificate. It makes what is missing,
// renews what ends, and changes nothing else, so that the Helm chart runs it at each installation and by a CronJob. It decides what each
// Secret holds; what a key or a token is, package auth says. The command pdrouter keys kubernetes calls it.
package kubesecrets

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pdrouter/auth"
)

// Data is what a Secret holds, by key.
type Data map[string][]byte

func (d Data) equal(o Data) bool { return maps.EqualFunc(d, o, bytes.Equal) }

// Store has Secrets.
type Store interface {
	// Get returns a Secret; nil if there is none.
	Get(ctx context.Context, name string) (Data, error)
	// Create makes a Secret that does not exist. Another one of its name is an error.
	Create(ctx context.Context, name string, d Data) error
	// Replace gives an existing Secret other contents. If it does not hold what it was read with any more, that is an error: another call is
	// under way.
	Replace(ctx context.Context, name string, was, d Data) error
}

const (
	// Issuer signs the tokens: auth.agents.issuer and auth.admins.issuer of the configuration.
	Issuer = "pdrouter"
	// tokenTTL is how long the tokens are valid. The CronJob renews them several times in it.
	tokenTTL = 24 * time.Hour
	// certificateTTL is how long the agents' certificate is valid; it is renewed when less than a third is left.
	certificateTTL = 90 * 24 * time.Hour
)

// Rotation says when keys that sign are replaced. Nothing that they signed is refused meanwhile: a new key is published for at least ten minutes
// before it signs, and the old one for two days after. Each call does the step that is due, so a rotation takes several calls.
type Rotation struct {
	Every  time.Duration // how long a key signs; 0 for ever
	Now    bool          // a rotation begins, however long the keys have been signing
	Leaked bool          // fresh keys sign at once, and all others are withdrawn: what they signed is refused
}

// Make makes and renews the Secrets whose names begin with name, for a gateway of that namespace. It returns what it did, a line for each
// Secret that it wrote.
func Make(ctx context.Context, s Store, name, namespace string, r Rotation, now time.Time) (done []string, err error) {
	m := maker{ctx: ctx, s: s, name: name, now: now.UTC()}
	for _, step := range []func() error{
		func() error { return m.signingKeys(r) },
		func() error { return m.missing("api-keys", apiKeys) },
		func() error { return m.missing("redis", password) },
		func() error { return m.follows("agent-keys", m.signers["agents"].public) },
		func() error { return m.follows("admin-keys", m.signers["admins"].public) },
		func() error { return m.follows("record-keys", m.signers["records"].public) },
		m.published,
		func() error { return m.follows("record-key", m.recordKey) },
		func() error {
			return m.token("gateway-token", "agents", auth.Grant{Audience: auth.MetadataAudience, Subject: "gateway", Scopes: []string{auth.PlaneScope}})
		},
		func() error {
			return m.token("prometheus-token", "admins", auth.Grant{Audience: auth.AdminAudience, Subject: "prometheus", Scopes: []string{auth.ReadScope}})
		},
		func() error { return m.certificate(namespace) },
	} {
		if err := step(); err != nil {
			return m.done, err
		}
	}
	return m.done, nil
}

type maker struct {
	ctx     context.Context
	s       Store
	name    string
	now     time.Time
	signers map[string]*signer
	done    []string
}

// signerNames are the keys that stay secret from everybody but this command.
var signerNames = [...]string{"agents", "admins", "records"}

const signingKeys = "signing-keys"

// signingKeys reads the private keys, or makes them, and does the step of their rotation that is due.
func (m *maker) signingKeys(r Rotation) error {
	is, err := m.s.Get(m.ctx, m.secret(signingKeys))
	if err != nil {
		return err
	}
	m.signers = map[string]*signer{}
	for _, of := range signerNames {
		s := &signer{}
		if is == nil || r.Leaked {
			err = s.replace(m.now)
		} else if s, err = readSigner(is, of); err == nil {
			if s.advance(m.now); r.Now || r.Every > 0 && m.now.Sub(s.since) >= r.Every {
				err = s.begin()
			}
		}
		if err != nil {
			return fmt.Errorf("secret %s: %w", m.secret(signingKeys), err)
		}
		m.signers[of] = s
	}
	return m.keepSigners()
}

// published notes that the public keys are where gateways read them. Only then the time begins after which a next key signs.
func (m *maker) published() error {
	for _, s := range m.signers {
		if s.next != nil && s.published.IsZero() {
			s.published = m.now
		}
	}
	return m.keepSigners()
}

func (m *maker) keepSigners() error {
	return m.follows(signingKeys, func() (Data, error) {
		d := Data{}
		for of, s := range m.signers {
			if err := s.put(d, of); err != nil {
				return nil, err
			}
		}
		return d, nil
	})
}

func (m *maker) secret(what string) string { return m.name + "-" + what }

// missing makes a Secret that does not exist.
func (m *maker) missing(what string, make func() (Data, error)) error {
	is, err := m.s.Get(m.ctx, m.secret(what))
	if err != nil || is != nil {
		return err
	}
	return m.create(what, make)
}

func (m *maker) create(what string, make func() (Data, error)) error {
	d, err := make()
	if err != nil {
		return err
	}
	if err := m.s.Create(m.ctx, m.secret(what), d); err != nil {
		return err
	}
	m.done = append(m.done, "made "+m.secret(what))
	return nil
}

// follows makes a Secret whose contents follow from the signing keys, or gives it these contents.
func (m *maker) follows(what string, make func() (Data, error)) error {
	is, err := m.s.Get(m.ctx, m.secret(what))
	if err != nil {
		return err
	}
	if is == nil {
		return m.create(what, make)
	}
	d, err := make()
	if err != nil {
		return err
	}
	if is.equal(d) {
		return nil
	}
	if err := m.s.Replace(m.ctx, m.secret(what), is, d); err != nil {
		return err
	}
	if said := "renewed " + m.secret(what); !slices.Contains(m.done, said) { // the signing keys are written twice
		m.done = append(m.done, said)
	}
	return nil
}

// recordKey is the private key with which gateways sign records: the only one that they have.
func (m *maker) recordKey() (Data, error) {
	b, err := m.signers["records"].current.JWK()
	return Data{"own.jwk": b}, err
}

// token mints a token anew.
func (m *maker) token(what, by string, g auth.Grant) error {
	return m.follows(what, func() (Data, error) {
		g.Issuer, g.TTL = Issuer, tokenTTL
		t, err := auth.Mint(m.signers[by].current, g)
		return Data{"token": []byte(t + "\n")}, err
	})
}

// apiKeys has one key for clients: the file that the gateway reads, with the key's digest, and the key itself.
func apiKeys() (Data, error) {
	dir, err := os.MkdirTemp("", "pdrouter")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "api-keys")
	key, err := auth.AppendAPIKey(file, "default", nil, auth.Limits{})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	return Data{"api-keys": b, "key": []byte(key)}, err
}

func password() (Data, error) { return Data{"password": []byte(rand.Text())}, nil }

// certificate makes the certificate of the agents' listener, or another when little of its time is left.
func (m *maker) certificate(namespace string) error {
	const what = "agents-tls"
	is, err := m.s.Get(m.ctx, m.secret(what))
	if err != nil {
		return err
	}
	if is != nil {
		block, _ := pem.Decode(is["tls.crt"])
		if block == nil {
			return fmt.Errorf("secret %s: tls.crt is no PEM", m.secret(what))
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("secret %s: tls.crt: %w", m.secret(what), err)
		}
		if c.Subject.CommonName != m.secret(what) || c.NotAfter.Sub(m.now) > certificateTTL/3 {
			return nil // somebody else's, or good for long enough
		}
	}
	return m.follows(what, func() (Data, error) { return selfSigned(m.secret(what), m.name+"-agents", namespace, m.now) })
}

// selfSigned returns a certificate for a Service, which is its own authority, and its key.
func selfSigned(subject, service, namespace string, now time.Time) (Data, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: subject}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateTTL),
		DNSNames: []string{service, service + "." + namespace, service + "." + namespace + ".svc"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	private, kerr := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err, kerr); err != nil {
		return nil, err
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return Data{"tls.crt": crt, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "ca.crt": crt}, nil
}
