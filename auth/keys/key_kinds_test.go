package keys_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth"
	"pdrouter/auth/internal/authtest"
	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
)

func kinds() []string { return []string{keys.EdDSA, keys.ES256, keys.RS256} }

// Every kind of key is written, read back from each of its forms, and signs what its public part checks.
func TestKeysOfEveryKind(t *testing.T) {
	for _, algorithm := range kinds() {
		t.Run(algorithm, func(t *testing.T) {
			k := keytest.Generate(t, algorithm)
			dir := t.TempDir()
			private, public, err := keys.Write(dir, k)
			if err != nil {
				t.Fatal(err)
			}
			der := keytest.Must(t)
			forms := map[string]string{
				"private.pem": keytest.PEM("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(k.SigningPart()))),
				"public.pem":  keytest.PEM("PUBLIC KEY", der(x509.MarshalPKIXPublicKey(k.PublicPart()))),
			}
			switch private := k.SigningPart().(type) {
			case *ecdsa.PrivateKey:
				forms["ec private.pem"] = keytest.PEM("EC PARAMETERS", []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}) + keytest.PEM("EC PRIVATE KEY", der(x509.MarshalECPrivateKey(private)))
			case *rsa.PrivateKey:
				forms["rsa private.pem"] = keytest.PEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private))
				forms["rsa public.pem"] = keytest.PEM("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&private.PublicKey))
			}
			files := map[string]bool{private: true, public: false}
			for name, text := range forms {
				file := filepath.Join(dir, name)
				keytest.Write(t, file, text)
				files[file] = strings.Contains(name, "private")
			}
			for file, signs := range files {
				got, err := keys.Load(file)
				if err != nil || got.ID != k.ID || got.Algorithm() != algorithm || got.Signs() != signs || !got.Equal(k) {
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
			if _, err := keys.Load(private); err == nil {
				t.Error("a private key that everybody may read was accepted")
			}
			token := authtest.Mint(t, k, auth.Grant{})
			if _, err := verifier(t, k.Public()).Verify(token); err != nil {
				t.Errorf("a token of the key: %v", err)
			}
			_, err = records.New(k, keytest.Trust(t, k))
			if ok := algorithm == keys.EdDSA; ok != (err == nil) {
				t.Errorf("records signed with it: got %v; want an error: %t", err, !ok)
			}
		})
	}
	for _, bad := range []string{"", keys.HS256, "none", "ES384", "eddsa"} {
		if _, err := keys.Generate(bad); err == nil {
			t.Errorf("a key was made for %q", bad)
		}
	}
}

func TestBadKeysOfEveryKind(t *testing.T) {
	ec, small := keytest.Generate(t, keys.ES256), smallRSA(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der := keytest.Must(t)
	for name, text := range map[string]string{
		"P-384":            keytest.PEM("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(p384))),
		"small RSA":        keytest.PEM("PUBLIC KEY", der(x509.MarshalPKIXPublicKey(&small.PublicKey))),
		"certificate":      keytest.PEM("CERTIFICATE", []byte{0x30, 0}),
		"two keys":         strings.Repeat(keytest.PEM("PRIVATE KEY", der(x509.MarshalPKCS8PrivateKey(ec.SigningPart()))), 2),
		"parameters alone": keytest.PEM("EC PARAMETERS", []byte{6, 0}),
		"low order":        keytest.PEM("PUBLIC KEY", append([]byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}, make([]byte, 32)...)),
		"even exponent":    `{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 342) + `","e":"AQAA"}`,
		"large RSA":        `{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 1366) + `","e":"AQAB"}`,
		"symmetric":        `{"kty":"oct","kid":"k","alg":"HS256","k":"` + strings.Repeat("_", 64) + `"}`,
	} {
		if k, err := keys.Parse([]byte(text)); err == nil {
			t.Errorf("%s: got %v; want an error", name, k)
		}
	}
	b, err := ec.JWK()
	if err != nil {
		t.Fatal(err)
	}
	other, err := keytest.Generate(t, keys.ES256).JWK()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m, o map[string]any){
		"foreign d":        func(m, o map[string]any) { m["d"] = o["d"] },
		"no d":             func(m, _ map[string]any) { m["d"] = strings.Repeat("A", 43) },
		"d out of range":   func(m, _ map[string]any) { m["d"] = strings.Repeat("_", 42) + "8" },
		"off the curve":    func(m, o map[string]any) { m["x"] = o["x"] },
		"other alg":        func(m, _ map[string]any) { m["alg"] = keys.RS256 },
		"symmetric alg":    func(m, _ map[string]any) { m["alg"] = keys.HS256 },
		"no alg":           func(m, _ map[string]any) { delete(m, "alg") },
		"alg is no string": func(m, _ map[string]any) { m["alg"] = []string{keys.ES256} },
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
		if _, err := keys.Parse(bad); err == nil {
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
	var all []*keys.Key
	for _, algorithm := range kinds() {
		all = append(all, keytest.Generate(t, algorithm))
	}
	v := verifier(t, all...)
	der := keytest.Must(t)
	for _, k := range all {
		if _, err := v.Verify(signed(t, jwt.GetSigningMethod(k.Algorithm()), k.ID, k.SigningPart())); err != nil {
			t.Errorf("%s: %v", k.Algorithm(), err)
		}
		for _, signer := range all {
			if signer != k {
				_, err := v.Verify(signed(t, jwt.GetSigningMethod(signer.Algorithm()), k.ID, signer.SigningPart()))
				authtest.Refused(t, signer.Algorithm()+" under the id of "+k.Algorithm(), err)
			}
		}
		public := der(x509.MarshalPKIXPublicKey(k.PublicPart()))
		text, err := k.Public().JWK()
		if err != nil {
			t.Fatal(err)
		}
		for form, secret := range map[string][]byte{"DER": public, "PEM": []byte(keytest.PEM("PUBLIC KEY", public)), "JWK": text} {
			_, err := v.Verify(signed(t, jwt.SigningMethodHS256, k.ID, secret))
			authtest.Refused(t, "HS256 with the public part of "+k.Algorithm()+" as "+form, err)
		}
		_, err = v.Verify(signed(t, jwt.SigningMethodNone, k.ID, jwt.UnsafeAllowNoneSignatureType))
		authtest.Refused(t, "none under "+k.Algorithm(), err)
		if k.Algorithm() == keys.RS256 {
			_, err = v.Verify(signed(t, jwt.SigningMethodPS256, k.ID, k.SigningPart()))
			authtest.Refused(t, "PS256", err)
			_, err = v.Verify(signed(t, jwt.SigningMethodRS512, k.ID, k.SigningPart()))
			authtest.Refused(t, "RS512", err)
		}
	}
}

// verifier returns one of clients' tokens by these keys.
func verifier(t testing.TB, of ...*keys.Key) *auth.Verifier {
	t.Helper()
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: "issuer", Audience: auth.ClientAudience}, keytest.Trust(t, of...))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// signed returns good claims, signed with any method and key.
func signed(t testing.TB, method jwt.SigningMethod, kid string, key any) string {
	t.Helper()
	now := time.Now().Unix()
	claims := jwt.MapClaims{"iss": "issuer", "sub": "alice", "aud": auth.ClientAudience, "iat": now, "exp": now + 3600}
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
	keytest.Write(t, file, secret+"\n")
	k, err := keys.DevelopmentSecret(file)
	if err != nil || !k.Development() || !k.Signs() || k.Algorithm() != keys.HS256 {
		t.Fatalf("got %v, %v; want a development key that signs with HS256", k, err)
	}
	if got, ok := k.SigningPart().([]byte); !ok || string(got) != secret {
		t.Error("tokens would not be signed with the secret")
	}
	if s := k.String() + k.GoString(); strings.Contains(s, secret) {
		t.Errorf("printed as %s", s)
	}
	if _, err := keys.Trust(k, k); err != nil {
		t.Errorf("alone: %v", err)
	}
	for _, both := range [][]*keys.Key{{k, keytest.New(t, "a")}, {keytest.New(t, "a"), k}} {
		if _, err := keys.Trust(both...); err == nil {
			t.Error("a development secret was taken beside another key")
		}
	}
	if _, err := keytest.Trust(t, k).JWKS(); err == nil {
		t.Error("a development secret is published")
	}
	if _, err := records.New(k, keytest.Trust(t, k)); err == nil {
		t.Error("a development secret signs records")
	}
	if _, _, err := keys.Write(t.TempDir(), k); err == nil {
		t.Error("a development secret was written as a key")
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.DevelopmentSecret(file); err == nil {
		t.Error("a secret that everybody may read was accepted")
	}
	short := filepath.Join(t.TempDir(), "short")
	keytest.Write(t, short, strings.Repeat("s", 31)+"\n")
	if _, err := keys.DevelopmentSecret(short); err == nil {
		t.Error("31 bytes were accepted")
	}
}

// FuzzKeyFile looks for files that are read as keys and are none: what is taken can be used, and written and read again.
func FuzzKeyFile(f *testing.F) {
	for _, algorithm := range []string{keys.EdDSA, keys.ES256} {
		k := keytest.Generate(f, algorithm)
		for _, k := range []*keys.Key{k, k.Public()} {
			b, err := k.JWK()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
		f.Add([]byte(keytest.PEM("PRIVATE KEY", keytest.Must(f)(x509.MarshalPKCS8PrivateKey(k.SigningPart())))))
		f.Add([]byte(keytest.PEM("PUBLIC KEY", keytest.Must(f)(x509.MarshalPKIXPublicKey(k.PublicPart())))))
	}
	f.Add([]byte(`{"kty":"RSA","kid":"k","alg":"RS256","n":"` + strings.Repeat("_", 342) + `","e":"AQAB"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := keys.Parse(b)
		if err != nil {
			return
		}
		if k.Development() || k.ID == "" || len(k.ID) > keys.MaxID {
			t.Fatalf("%v for %q was taken", k, k.Algorithm())
		}
		usable(t, k)
		text, err := k.JWK()
		if err != nil {
			t.Fatal(err)
		}
		again, err := keys.Parse(text)
		if err != nil || again.ID != k.ID || again.Signs() != k.Signs() || !again.Equal(k) {
			t.Fatalf("written and read again: got %v, %v; want %v", again, err, k)
		}
	})
}

// usable checks a signature with the key: a good one, if it can make one, and one that is none.
func usable(t *testing.T, k *keys.Key) {
	t.Helper()
	method := jwt.GetSigningMethod(k.Algorithm())
	if err := method.Verify("text", make([]byte, 64), crypto.PublicKey(k.PublicPart())); err == nil {
		t.Fatalf("%v takes zeros for a signature", k)
	}
	if k.SigningPart() == nil {
		return
	}
	sig, err := method.Sign("text", k.SigningPart())
	if err == nil {
		err = method.Verify("text", sig, k.PublicPart())
	}
	if err != nil {
		t.Fatalf("%v does not sign: %v", k, err)
	}
}

// FuzzJWKS looks for sets that are taken and have keys that are not to be trusted, or cannot be used.
func FuzzJWKS(f *testing.F) {
	a, b := keytest.New(f, "a"), keytest.Generate(f, keys.ES256)
	f.Add([]byte(jwksOf(f, a, b)))
	f.Add([]byte(`{"keys":[]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","kid":"k","k":"AAAA"},{"kty":"RSA","kid":"r","n":"` + strings.Repeat("_", 342) + `","e":"AQAB","x5c":["AA=="]}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"r","use":"jwt-svid","n":"` + strings.Repeat("_", 342) + `","e":"AQAB"}],"spiffe_refresh_hint":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := keys.ParseJWKS(b)
		if err != nil {
			return
		}
		if len(set.Keys) == 0 {
			t.Fatal("an empty set was taken")
		}
		for id, k := range set.Keys {
			if k.ID != id || id == "" || len(id) > keys.MaxID || k.Signs() || k.Development() {
				t.Fatalf("%v was taken under %q", k, id)
			}
			usable(t, k)
		}
	})
}
