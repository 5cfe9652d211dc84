package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// makeSecrets runs the commands that the head of gateway.yaml tells, but for kubectl, and returns the content of each
// Secret's keys as "secret/key".
func makeSecrets(t *testing.T, bin string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	head, err := os.ReadFile(filepath.Join(folder, "gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(head), "\n---\n")
	text = strings.ReplaceAll(text, "\\\n#", "")
	secrets := map[string]string{}
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	cert, key := certificate(t)
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
		line, _, _ = strings.Cut(line, "          ") // what follows is for people
		if strings.HasPrefix(line, "pdrouter ") {
			// The key's id stands for KID; the folder is in the command before it.
			script := regexp.MustCompile(`(\w+)/KID\.jwk`).ReplaceAllString(strings.Replace(line, "pdrouter", bin, 1), `$(ls -d $1/*.jwk | grep -v pub)`)
			cmd := exec.Command("sh", "-ec", script)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
		words := strings.Fields(line)
		if len(words) < 5 || words[0] != "kubectl" || words[2] != "secret" {
			continue
		}
		name := words[4]
		if words[3] == "tls" {
			secrets[name+"/tls.crt"], secrets[name+"/tls.key"] = cert, key
			continue
		}
		for _, w := range words[5:] {
			w = strings.TrimPrefix(w, "--from-file=")
			to, from, named := strings.Cut(w, "=")
			if !named {
				from = to
			}
			if from == "FILE" {
				secrets[name+"/"+to] = "a-password"
				continue
			}
			if folder, file, ok := strings.Cut(from, "/KID"); ok {
				found, err := filepath.Glob(filepath.Join(dir, folder, "*"+file))
				for len(found) > 1 && strings.HasSuffix(found[len(found)-1], ".pub.jwk") && file == ".jwk" {
					found = found[:len(found)-1]
				}
				if err != nil || len(found) != 1 {
					t.Fatalf("%s: %v %v", line, found, err)
				}
				from, _ = filepath.Rel(dir, found[0])
			}
			secrets[name+"/"+to] = read(from)
		}
	}
	if len(secrets) < 8 {
		t.Fatalf("the head of gateway.yaml makes only %d files of secrets", len(secrets))
	}
	return secrets
}

// certificate returns a self-signed certificate and its key as PEM.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"pdrouter-agents"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}
