package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func generate(t testing.TB, algorithm string) *Key {
	t.Helper()
	fresh := GenerateKey
	if algorithm == RS256 {
		fresh = func(string) (*Key, error) { return rsaKey() }
	}
	k, err := fresh(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// rsaKey returns the one RSA key of all tests, because to make one takes long.
var rsaKey = sync.OnceValues(func() (*Key, error) { return GenerateKey(RS256) })

func kinds() []string { return []string{EdDSA, ES256, RS256} }

// must returns what a marshaller made of a key.
func must(t testing.TB) func(der []byte, err error) []byte {
	return func(der []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
}

// Every kind of key is written, read back from each of its forms, and signs what its public part checks.
func TestKeysOfEveryKind(t *testing.T) {
	for _, algorithm := range kinds() {
		t.Run(algorithm, func(t *testing.T) {
			k := generate(t, algorithm)
			dir := t.TempDir()
			private, public, err := WriteKey(dir, k)
			if err != nil {
				t.Fatal(err)
			}
			der := must(t)
			forms := map[string]string{
				"private.pem": pemOf("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(k.private))),
				"public.pem":  pemOf("PUBLIC KEY", der(x509.MarshalPKIXPublicKey(k.public))),
			}
			switch private := k.private.(type) {
			case *ecdsa.PrivateKey:
				forms["ec private.pem"] = pemOf("EC PARAMETERS", []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}) + pemOf("EC PRIVATE KEY", der(x509.MarshalECPrivateKey(private)))
			case *rsa.PrivateKey:
				forms["rsa private.pem"] = pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private))
				forms["rsa public.pem"] = pemOf("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&private.PublicKey))
			}
			files := map[string]bool{private: true, public: false}
			for name, text := range forms {
				file := filepath.Join(dir, name)
				write(t, file, text)
				files[file] = strings.Contains(name, "private")
			}
			for file, signs := range files {
				got, err := LoadKey(file)
				if err != nil || got.ID != k.ID || got.Algorithm() != algorithm || got.Signs() != signs || !got.same(k) {
					t.Errorf("%s: got %v, %v; want %v for %s, signs: %t", filepath.Base(file), got, err, k, algorithm, signs)
				}
			}
			b, err := os.ReadFile(public)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{`"d"`, `"p"`, `"q"`, `"dp"`, `"dq"`, `"qi"`} {
				if bytes.Contains(b, []byte(name)) {
					t.Errorf("the public file has %s", name)
				}
			}
			if err := os.Chmod(private, 0o604); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadKey(private); err == nil {
				t.Error("a private key that everybody may read was accepted")
			}
			token := mint(t, k, Grant{})
			if _, err := newVerifier(t, VerifierConfig{}, k.Public()).Verify(token); err != nil {
				t.Errorf("a token of the key: %v", err)
			}
			_, err = NewRecords(k, mustKeys(t, k))
			if ok := algorithm == EdDSA; ok != (err == nil) {
				t.Errorf("records signed with it: got %v; want an error: %t", err, !ok)
			}
		})
	}
	for _, bad := range []string{"", HS256, "none", "ES384", "eddsa"} {
		if _, err := GenerateKey(bad); err == nil {
			t.Errorf("a key was made for %q", bad)
		}
	}
}

func mustKeys(t testing.TB, keys ...*Key) *Keys {
	t.Helper()
	set, err := NewKeys(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestBadKeysOfEveryKind(t *testing.T) {
	ec, small := generate(t, ES256), smallRSA(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der := must(t)
	for name, text := range map[string]string{
		"P-384":            pemOf("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(p384))),
		"small RSA":        pemOf("PUBLIC KEY", der(x509.MarshalPKIXPublicKey(&small.PublicKey))),
		"certificate":      pemOf("CERTIFICATE", []byte{0x30, 0}),
		"two keys":         strings.Repeat(pemOf("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(ec.private))), 2),
		"parameters alone": pemOf("EC PARAMETERS", []byte{6, 0}),
		"low order":        pemOf("PUBLIC KEY", append([]byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}, make([]byte, 32)...)),
		"even exponent":    `{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 342) + `","e":"AQAA"}`,
		"large RSA":        `{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 1366) + `","e":"AQAB"}`,
		"symmetric":        `{"kty":"oct","kid":"k","alg":"HS256","k":"` + strings.Repeat("_", 64) + `"}`,
	} {
		if k, err := parseKey([]byte(text)); err == nil {
			t.Errorf("%s: got %v; want an error", name, k)
		}
	}
	b, err := ec.jwk()
	if err != nil {
		t.Fatal(err)
	}
	other, err := generate(t, ES256).jwk()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m, o map[string]any){
		"foreign d":        func(m, o map[string]any) { m["d"] = o["d"] },
		"no d":             func(m, _ map[string]any) { m["d"] = strings.Repeat("A", 43) },
		"d out of range":   func(m, _ map[string]any) { m["d"] = strings.Repeat("_", 42) + "8" },
		"off the curve":    func(m, o map[string]any) { m["x"] = o["x"] },
		"other alg":        func(m, _ map[string]any) { m["alg"] = RS256 },
		"symmetric alg":    func(m, _ map[string]any) { m["alg"] = HS256 },
		"no alg":           func(m, _ map[string]any) { delete(m, "alg") },
		"alg is no string": func(m, _ map[string]any) { m["alg"] = []string{ES256} },
		"to encrypt":       func(m, _ map[string]any) { m["key_ops"] = []string{"encrypt"} },
		"for encryption":   func(m, _ map[string]any) { m["use"] = "enc" },
		"use is no string": func(m, _ map[string]any) { m["use"] = 5 },
	} {
		var m, o map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(other, &o); err != nil {
			t.Fatal(err)
		}
		secret := m["d"].(string)
		change(m, o)
		bad, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseKey(bad); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error quotes the private part", name)
		}
	}
}

// smallRSA returns a key that is too small to be taken.
func smallRSA(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Whatever a token says of its algorithm, each key checks tokens of its own alone.
func TestFault32AlgorithmIsTheKeys(t *testing.T) {
	var keys []*Key
	for _, algorithm := range kinds() {
		keys = append(keys, generate(t, algorithm))
	}
	v := newVerifier(t, VerifierConfig{}, keys...)
	der := must(t)
	for _, k := range keys {
		if _, err := v.Verify(signed(t, jwt.GetSigningMethod(k.algorithm), k.ID, k.private)); err != nil {
			t.Errorf("%s: %v", k.algorithm, err)
		}
		for _, signer := range keys {
			if signer != k {
				_, err := v.Verify(signed(t, jwt.GetSigningMethod(signer.algorithm), k.ID, signer.private))
				refused(t, signer.algorithm+" under the id of "+k.algorithm, err)
			}
		}
		public := der(x509.MarshalPKIXPublicKey(k.public))
		text, err := k.Public().jwk()
		if err != nil {
			t.Fatal(err)
		}
		for form, secret := range map[string][]byte{"DER": public, "PEM": []byte(pemOf("PUBLIC KEY", public)), "JWK": text} {
			_, err := v.Verify(signed(t, jwt.SigningMethodHS256, k.ID, secret))
			refused(t, "HS256 with the public part of "+k.algorithm+" as "+form, err)
		}
		_, err = v.Verify(signed(t, jwt.SigningMethodNone, k.ID, jwt.UnsafeAllowNoneSignatureType))
		refused(t, "none under "+k.algorithm, err)
		if k.algorithm == RS256 {
			_, err = v.Verify(signed(t, jwt.SigningMethodPS256, k.ID, k.private))
			refused(t, "PS256", err)
			_, err = v.Verify(signed(t, jwt.SigningMethodRS512, k.ID, k.private))
			refused(t, "RS512", err)
		}
	}
}

// signed returns good claims, signed with any method and key.
func signed(t testing.TB, method jwt.SigningMethod, kid string, key any) string {
	t.Helper()
	var claims jwt.MapClaims
	if err := json.Unmarshal([]byte(with(nil)), &claims); err != nil {
		t.Fatal(err)
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"], token.Header["typ"] = kid, "at+jwt"
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDevelopmentKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	secret := strings.Repeat("s", 32)
	write(t, file, secret+"\n")
	k, err := DevelopmentKey(file)
	if err != nil || !k.Development() || !k.Signs() || k.Algorithm() != HS256 {
		t.Fatalf("got %v, %v; want a development key that signs with HS256", k, err)
	}
	if got, ok := k.signingKey().([]byte); !ok || string(got) != secret {
		t.Error("tokens would not be signed with the secret")
	}
	if s := k.String() + k.GoString(); strings.Contains(s, secret) {
		t.Errorf("printed as %s", s)
	}
	if _, err := NewKeys(k, k); err != nil {
		t.Errorf("alone: %v", err)
	}
	for _, keys := range [][]*Key{{k, newKey(t, "a")}, {newKey(t, "a"), k}} {
		if _, err := NewKeys(keys...); err == nil {
			t.Error("a development secret was taken beside another key")
		}
	}
	if _, err := mustKeys(t, k).JWKS(); err == nil {
		t.Error("a development secret is published")
	}
	if _, err := NewRecords(k, mustKeys(t, k)); err == nil {
		t.Error("a development secret signs records")
	}
	if _, _, err := WriteKey(t.TempDir(), k); err == nil {
		t.Error("a development secret was written as a key")
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := DevelopmentKey(file); err == nil {
		t.Error("a secret that everybody may read was accepted")
	}
	short := filepath.Join(t.TempDir(), "short")
	write(t, short, strings.Repeat("s", 31)+"\n")
	if _, err := DevelopmentKey(short); err == nil {
		t.Error("31 bytes were accepted")
	}
}

// FuzzKeyFile looks for files that are read as keys and are none: what is taken can be used, and written and read again.
func FuzzKeyFile(f *testing.F) {
	for _, algorithm := range []string{EdDSA, ES256} {
		k := generate(f, algorithm)
		for _, k := range []*Key{k, k.Public()} {
			b, err := k.jwk()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
		f.Add([]byte(pemOf("PRIVATE KEY", must(f)(x509.MarshalPKCS8PrivateKey(k.private)))))
		f.Add([]byte(pemOf("PUBLIC KEY", must(f)(x509.MarshalPKIXPublicKey(k.public)))))
	}
	f.Add([]byte(`{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 342) + `","e":"AQAB"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseKey(b)
		if err != nil {
			return
		}
		if k.Development() || k.ID == "" || len(k.ID) > maxKeyID {
			t.Fatalf("%v for %q was taken", k, k.algorithm)
		}
		usable(t, k)
		text, err := k.jwk()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKey(text)
		if err != nil || again.ID != k.ID || again.Signs() != k.Signs() || !again.same(k) {
			t.Fatalf("written and read again: got %v, %v; want %v", again, err, k)
		}
	})
}

// usable checks a signature with the key: a good one, if it can make one, and one that is none.
func usable(t *testing.T, k *Key) {
	t.Helper()
	method := jwt.GetSigningMethod(k.algorithm)
	if err := method.Verify("text", make([]byte, 64), crypto.PublicKey(k.public)); err == nil {
		t.Fatalf("%v takes zeros for a signature", k)
	}
	if k.private == nil {
		return
	}
	sig, err := method.Sign("text", k.signingKey())
	if err == nil {
		err = method.Verify("text", sig, k.public)
	}
	if err != nil {
		t.Fatalf("%v does not sign: %v", k, err)
	}
}

// FuzzJWKS looks for sets that are taken and have keys that are not to be trusted, or cannot be used.
func FuzzJWKS(f *testing.F) {
	a, b := newKey(f, "a"), generate(f, ES256)
	f.Add([]byte(jwksOf(f, a, b)))
	f.Add([]byte(`{"keys":[]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","kid":"k","k":"AAAA"},{"kty":"RSA","kid":"r","n":"` + strings.Repeat("_", 342) + `","e":"AQAB","x5c":["AA=="]}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"r","use":"jwt-svid","n":"` + strings.Repeat("_", 342) + `","e":"AQAB"}],"spiffe_refresh_hint":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := parseJWKS(b)
		if err != nil {
			return
		}
		if len(set.keys) == 0 {
			t.Fatal("an empty set was taken")
		}
		for id, k := range set.keys {
			if k.ID != id || id == "" || len(id) > maxKeyID || k.Signs() || k.Development() {
				t.Fatalf("%v was taken under %q", k, id)
			}
			usable(t, k)
		}
	})
}
