package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeCertificate writes a new self-signed certificate of 127.0.0.1 and its key, and returns the pool that trusts it.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, b := range map[string][]byte{"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "tls.crt": certificate} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool
}

// serveTLS runs a gateway with TLS for clients in front of one engine. It returns where clients connect, the folder of the certificate, and
// the pool that trusts it.
func serveTLS(t *testing.T) (at, dir string, pool *x509.CertPool) {
	t.Helper()
	engine := startEngine(t, "--name", "e", "--role", "both")
	dir = t.TempDir()
	pool = writeCertificate(t, dir)
	path := filepath.Join(dir, "pdrouter.yaml")
	config := "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\", clients_tls: {cert_file: tls.crt, key_file: tls.key}}\n" +
		"timeouts: {read: 1s}\nmodels: [{name: reference, engines: [{name: e, url: \"" + engine.url + "\"}]}]\n"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveFile(t, path).Clients().String(), dir, pool
}

// TestClientsTLS: clients connect by TLS 1.2 and 1.3 and get whole answers and streams; by plain HTTP or TLS 1.1 they get nothing of them. A
// renewed certificate is used for new connections.
func TestClientsTLS(t *testing.T) {
	at, dir, pool := serveTLS(t)
	client := func(pool *x509.CertPool, version uint16) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: version, MaxVersion: version}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	ask := func(c *http.Client, stream bool) (string, error) {
		body := fmt.Sprintf(`{"model":"reference","prompt":"one two three","max_tokens":12,"stream":%t}`, stream)
		resp, err := c.Post("https://"+at+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			return "", fmt.Errorf("status %d: %s", resp.StatusCode, b)
		}
		return string(b), err
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := client(pool, version)
		for range 2 { // the second on the same connection
			if got, err := ask(c, false); err != nil || !strings.Contains(got, `"finish_reason":"length"`) {
				t.Errorf("%x: %q, %v", version, got, err)
			}
			if got, err := ask(c, true); err != nil || !strings.HasSuffix(got, "data: [DONE]\n\n") {
				t.Errorf("%x, streamed: %q, %v", version, got, err)
			}
		}
	}
	if got, err := ask(client(pool, tls.VersionTLS11), false); err == nil {
		t.Errorf("TLS 1.1 got %q", got)
	}
	if resp, err := http.Get("http://" + at + "/v1/models"); err == nil {
		resp.Body.Close()
		t.Errorf("plain HTTP got %s", resp.Status)
	}

	next := writeCertificate(t, dir)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) { // files are looked at each second, and believed at the second look
		if _, err := ask(client(next, tls.VersionTLS13), false); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the renewed certificate is not used: %v", err)
		}
	}
	if _, err := ask(client(pool, tls.VersionTLS13), false); err == nil {
		t.Error("the old certificate is still used")
	}
}

// TestFault08StalledTLSHandshake: clients that connect and say nothing, or half of a handshake, are closed after timeouts.read, and others are
// served meanwhile.
func TestFault08StalledTLSHandshake(t *testing.T) {
	at, _, pool := serveTLS(t)
	for name, text := range map[string]string{"nothing": "", "half a record": "\x16\x03\x01\x02\x00\x01\x00", "no TLS": "GET / HT"} {
		for range 20 {
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
				if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("%s: the connection is still open", name)
				}
			})
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + at + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("beside stalled handshakes: %s", resp.Status)
	}
}
