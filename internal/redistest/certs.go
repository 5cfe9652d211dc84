package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certs are files of an authority, of servers on loopback, and of a client.
type Certs struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
}

// NewCerts makes an authority and what it has signed, for a day.
func NewCerts(t testing.TB) Certs {
	t.Helper()
	dir := t.TempDir()
	own := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	ownKey := newKey(t)
	writeCert(t, filepath.Join(dir, "ca.pem"), own, own, ownKey, ownKey)
	leaf := func(name string, serial int64, use x509.ExtKeyUsage) (cert, keyFile string) {
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: own.NotBefore, NotAfter: own.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use, x509.ExtKeyUsageClientAuth}} // nodes are each other's clients
		key := newKey(t)
		cert, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
		writeCert(t, cert, c, own, key, ownKey)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, keyFile, "PRIVATE KEY", der)
		return cert, keyFile
	}
	c := Certs{CA: filepath.Join(dir, "ca.pem")}
	c.ServerCert, c.ServerKey = leaf("redis", 2, x509.ExtKeyUsageServerAuth)
	c.ClientCert, c.ClientKey = leaf("client", 3, x509.ExtKeyUsageClientAuth)
	return c
}

// Args returns what makes a server listen with TLS alone and ask its clients for certificates.
func (c Certs) Args(port int) []string {
	return []string{"--port", "0", "--tls-port", itoa(port), "--tls-ca-cert-file", c.CA, "--tls-cert-file", c.ServerCert,
		"--tls-key-file", c.ServerKey, "--tls-auth-clients", "yes", "--tls-replication", "yes", "--tls-cluster", "yes"}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeCert(t testing.TB, path string, c, by *x509.Certificate, key, byKey *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, path, "CERTIFICATE", der)
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
