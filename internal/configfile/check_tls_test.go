package configfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEngineTLSFiles: check reads the files of an engine's TLS, relative to the configuration.
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
}

// TestCheckForwardedWithoutTLS: clients' credentials that travel without TLS are warned of.
func TestCheckForwardedWithoutTLS(t *testing.T) {
	got, err := checkText(t, t.TempDir(), `models: [{name: m, forward_authorization: true, engines: [{name: a, url: "http://a"}, {name: b, url: "https://b"}]}]`)
	if err != nil || strings.Count(got, "clients' credentials are sent to") != 1 || !strings.Contains(got, "sent to a without TLS") {
		t.Errorf("%v\n%s", err, got)
	}
}
