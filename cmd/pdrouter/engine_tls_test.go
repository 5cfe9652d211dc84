package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/configfile"
	"pdrouter/router/config"
)

// TestEngineTLSFiles: check reads the files of an engine's TLS, relative to the configuration, and a reload watches them.
func TestEngineTLSFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"ca.pem": "no certificate", "cert.pem": "half", "key.pem": "half"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := `models:
  - name: m
    engines:
    - {name: a, url: "https://a", tls: {ca_file: ca.pem}}
    - {name: b, url: "https://b", tls: {cert_file: cert.pem, key_file: key.pem}}
    - {name: c, url: "https://c", tls: {ca_file: none.pem}}
`
	_, err := checkText(t, dir, text)
	if err == nil {
		t.Fatal("files that are no certificates were taken")
	}
	for _, want := range []string{
		`:4: models[0] "m": engines[0].tls.ca_file cannot be used: it has no certificate`,
		`:5: models[0] "m": engines[1].tls.cert_file cannot be used: tls: failed to find any PEM data`,
		`:6: models[0] "m": engines[2].tls.ca_file cannot be used: open `,
	} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("want %q once in\n%v", want, err)
		}
	}
	path := filepath.Join(dir, "watched.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		if !slices.Contains(watched(&l.File), filepath.Join(dir, name)) {
			t.Errorf("%s is not watched", name)
		}
	}
}

// TestCheckForwardedWithoutTLS: clients' credentials that travel without TLS are warned of.
func TestCheckForwardedWithoutTLS(t *testing.T) {
	got, err := checkText(t, t.TempDir(), `models: [{name: m, forward_authorization: true, engines: [{name: a, url: "http://a"}, {name: b, url: "https://b"}]}]`)
	if err != nil || strings.Count(got, "clients' credentials are sent to") != 1 || !strings.Contains(got, "sent to a without TLS") {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestPrivateKeyIsNoCredential: an entry that the configuration does not list may use a model's TLS files as what they are, and
// not have the private key sent to its engine.
func TestPrivateKeyIsNoCredential(t *testing.T) {
	named := config.TLS{CertFile: "/tls/cert", KeyFile: "/tls/key"}
	m := config.Model{Name: "m", Engines: []config.Engine{{Name: "e", URL: "https://e", TLS: named}}}
	if err := fitsAdded(m, "engines", config.Engine{Name: "x", URL: "https://x", TLS: named}); err != nil {
		t.Error(err)
	}
	for key, e := range map[string]config.Engine{
		"bearer_token_file": {BearerTokenFile: "/tls/key"},
		"tls.ca_file":       {TLS: config.TLS{CAFile: "/tls/cert"}},
		"tls.cert_file":     {TLS: config.TLS{CertFile: "/etc/cert", KeyFile: "/tls/key"}},
	} {
		e.Name, e.URL = "x", "https://x"
		if err := fitsAdded(m, "engines", e); err == nil || !strings.Contains(err.Error(), key+" is ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
