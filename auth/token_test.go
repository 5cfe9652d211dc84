package auth

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func newVerifier(t testing.TB, cfg VerifierConfig, of ...*keys.Key) *Verifier {
	t.Helper()
	if cfg.Issuer == "" {
		cfg.Issuer = "issuer"
	}
	if cfg.Audience == "" {
		cfg.Audience = ClientAudience
	}
	set, err := keys.Trust(of...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(cfg, set)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mint(t testing.TB, key *keys.Key, g Grant) string {
	t.Helper()
	if g.Issuer == "" {
		g.Issuer = "issuer"
	}
	if g.Audience == "" {
		g.Audience = ClientAudience
	}
	if g.Subject == "" {
		g.Subject = "alice"
	}
	if g.TTL == 0 {
		g.TTL = time.Hour
	}
	s, err := Mint(key, g)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// forge signs any header and any claims, given as raw JSON.
func forge(key *keys.Key, head, claims string) string {
	s := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	return s + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key.SigningPart().(ed25519.PrivateKey), []byte(s)))
}

// with returns good claims at the present time with some replaced, or removed where the value is nil.
func with(change map[string]any) string {
	now := time.Now().Unix()
	claims := map[string]any{"iss": "issuer", "sub": "alice", "aud": ClientAudience, "iat": now, "exp": now + 3600}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	return string(b)
}

const goodHeader = `{"alg":"EdDSA","kid":"k1","typ":"at+jwt"}`

// refused fails the test unless err is the one refusal that every invalid token gets.
func refused(t *testing.T, name string, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v; want a refusal", name, err)
		return
	}
	if e.HTTPStatus() != http.StatusUnauthorized || e.Message() != "missing or invalid credentials" || e.Challenge() != `Bearer realm="pdrouter", error="invalid_token"` {
		t.Errorf("%s: got %d %q %q; want the same 401 as for any other invalid token", name, e.HTTPStatus(), e.Message(), e.Challenge())
	}
}

func TestFault31TokenThatIsNoToken(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	good := forge(key, goodHeader, with(nil))
	if _, err := v.Verify(good); err != nil {
		t.Fatalf("the good token is refused: %v", err)
	}
	parts := strings.Split(good, ".")
	for name, token := range map[string]string{
		"over 8 KiB":              forge(key, goodHeader, with(map[string]any{"x": strings.Repeat("x", 8<<10)})),
		"many dots":               strings.Repeat(".", 8000),
		"four parts":              good + ".",
		"two parts":               parts[0] + "." + parts[1],
		"bad base64 in header":    "!" + good,
		"bad base64 in claims":    parts[0] + ".!" + parts[1] + "." + parts[2],
		"padded base64":           parts[0] + "=." + parts[1] + "." + parts[2],
		"signature not canonical": parts[0] + "." + parts[1] + "." + nextInAlphabet(parts[2]),
		"claims are an array":     forge(key, goodHeader, `[]`),
		"claims are broken":       forge(key, goodHeader, `{"iss":`),
		"deep claims":             forge(key, goodHeader, with(map[string]any{"x": json.RawMessage(strings.Repeat("[", 2000) + strings.Repeat("]", 2000))})),
		"empty":                   "",
	} {
		_, err := v.Verify(token)
		refused(t, name, err)
		_, err = v.Authenticate(token)
		refused(t, name, err)
	}
}

// nextInAlphabet changes bits of the last character that do not count: the same bytes, written otherwise.
func nextInAlphabet(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(alphabet, s[len(s)-1])
	return s[:len(s)-1] + string(alphabet[i^1])
}

// A large token must not make the verifier allocate in proportion.
func TestFault31MemoryIsBounded(t *testing.T) {
	v := newVerifier(t, VerifierConfig{}, keytest.New(t, "k1"))
	token := strings.Repeat("a.", 8<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_, err := v.Authenticate(token)
		refused(t, "16 MiB of dots", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("100 refusals of 16 MiB allocated %d bytes; want at most 1 MiB", got)
	}
}

func TestFault32Algorithm(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	claims := with(nil)
	b64 := base64.RawURLEncoding.EncodeToString
	unsigned := b64([]byte(`{"alg":"none","kid":"k1","typ":"at+jwt"}`)) + "." + b64([]byte(claims)) + "."
	hs := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "issuer", "sub": "a", "aud": ClientAudience, "iat": time.Now().Unix(), "exp": time.Now().Unix() + 60})
	hs.Header["kid"], hs.Header["typ"] = "k1", "at+jwt"
	confused, err := hs.SignedString([]byte(key.PublicPart().(ed25519.PublicKey))) // the public key as a shared secret
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"none":                         unsigned,
		"None":                         strings.Replace(unsigned, b64([]byte(`{"alg":"none"`)), b64([]byte(`{"alg":"None"`)), 1),
		"HS256 with the public key":    confused,
		"ES256 in the header":          forge(key, `{"alg":"ES256","kid":"k1","typ":"at+jwt"}`, claims),
		"eddsa in another case":        forge(key, `{"alg":"eddsa","kid":"k1","typ":"at+jwt"}`, claims),
		"Ed25519, not the pinned name": forge(key, `{"alg":"Ed25519","kid":"k1","typ":"at+jwt"}`, claims),
		"signed with another key":      forge(keytest.New(t, "k2"), goodHeader, claims),
		"another key's id":             forge(key, `{"alg":"EdDSA","kid":"k2","typ":"at+jwt"}`, claims),
		"no kid":                       forge(key, `{"alg":"EdDSA","typ":"at+jwt"}`, claims),
	} {
		_, err := v.Verify(token)
		refused(t, name, err)
	}
}

func TestFault33Header(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	claims := with(nil)
	for name, head := range map[string]string{
		"crit":                    `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","crit":["x"],"x":1}`,
		"empty crit":              `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","crit":[]}`,
		"jku":                     `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","jku":"http://127.0.0.1/keys"}`,
		"x5u":                     `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","x5u":"http://127.0.0.1/cert"}`,
		"x5c":                     `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","x5c":[]}`,
		"jwk":                     `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","jwk":{}}`,
		"b64":                     `{"alg":"EdDSA","kid":"k1","typ":"at+jwt","b64":false}`,
		"doubled alg":             `{"alg":"EdDSA","alg":"EdDSA","kid":"k1","typ":"at+jwt"}`,
		"alg and Alg":             `{"alg":"EdDSA","Alg":"none","kid":"k1","typ":"at+jwt"}`,
		"ALG instead":             `{"ALG":"EdDSA","kid":"k1","typ":"at+jwt"}`,
		"kid is a number":         `{"alg":"EdDSA","kid":1,"typ":"at+jwt"}`,
		"bytes after the header":  `{"alg":"EdDSA","kid":"k1","typ":"at+jwt"} {}`,
		"typ missing":             `{"alg":"EdDSA","kid":"k1"}`,
		"typ JWT":                 `{"alg":"EdDSA","kid":"k1","typ":"JWT"}`,
		"typ of an agent's token": `{"alg":"EdDSA","kid":"k1","typ":"pdrouter-agent+jwt"}`,
	} {
		_, err := v.Verify(forge(key, head, claims))
		refused(t, name, err)
	}
	if _, err := v.Verify(forge(key, `{"typ":"application/at+jwt","kid":"k1","alg":"EdDSA"}`, claims)); err != nil {
		t.Errorf("the long form of the type is refused: %v", err)
	}
}

func TestFault34Times(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := keytest.New(t, "k1")
		v := newVerifier(t, VerifierConfig{MaxLifetime: time.Hour}, key)
		now := time.Now().Unix()
		for _, c := range []struct {
			name   string
			change map[string]any
			ok     bool
		}{
			{"good", nil, true},
			{"no exp", map[string]any{"exp": nil}, false},
			{"exp 0", map[string]any{"exp": 0}, false},
			{"exp null", map[string]any{"exp": json.RawMessage("null")}, false},
			{"exp as text", map[string]any{"exp": "9999999999"}, false},
			{"exp 29 s ago", map[string]any{"iat": now - 60, "exp": now - 29}, true},
			{"exp 30 s ago", map[string]any{"iat": now - 60, "exp": now - 30}, false},
			{"lives an hour", map[string]any{"exp": now + 3600}, true},
			{"lives longer", map[string]any{"exp": now + 3601}, false},
			{"ends too late, iat in step", map[string]any{"iat": now + 3000, "exp": now + 6600}, false},
			{"exp beyond all bounds", map[string]any{"exp": 1e300}, false},
			{"no iat", map[string]any{"iat": nil}, false},
			{"iat in 30 s", map[string]any{"iat": now + 30}, true},
			{"iat in 31 s", map[string]any{"iat": now + 31}, false},
			{"nbf in 30 s", map[string]any{"nbf": now + 30}, true},
			{"nbf in 31 s", map[string]any{"nbf": now + 31}, false},
			{"EXP beside exp", map[string]any{"exp": now - 60, "iat": now - 90, "EXP": now + 60}, false},
			{"EXP instead of exp", map[string]any{"exp": nil, "EXP": now + 60}, false},
			{"claim in a folded case", map[string]any{"i\u017fs": "issuer"}, false},
		} {
			_, err := v.Verify(forge(key, goodHeader, with(c.change)))
			if (err == nil) != c.ok {
				t.Errorf("%s: got %v; want accepted: %t", c.name, err, c.ok)
			}
			if err != nil {
				refused(t, c.name, err)
			}
		}
		doubled := strings.Replace(with(nil), `{`, fmt.Sprintf(`{"exp":%d,`, now+60), 1)
		_, err := v.Verify(forge(key, goodHeader, doubled))
		refused(t, "exp twice", err)
	})
}

func TestFault35IssuerAudienceScope(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{Scopes: []string{"infer"}}, key)
	for _, c := range []struct {
		name   string
		change map[string]any
		status int
	}{
		{"good", map[string]any{"scope": "other infer"}, http.StatusOK},
		{"one of several audiences", map[string]any{"scope": "infer", "aud": []string{"x", ClientAudience}}, http.StatusOK},
		{"no scope", nil, http.StatusForbidden},
		{"part of a scope", map[string]any{"scope": "inference"}, http.StatusForbidden},
		{"other issuer", map[string]any{"scope": "infer", "iss": "other"}, http.StatusUnauthorized},
		{"no issuer", map[string]any{"scope": "infer", "iss": nil}, http.StatusUnauthorized},
		{"other audience", map[string]any{"scope": "infer", "aud": MetadataAudience}, http.StatusUnauthorized},
		{"no audience", map[string]any{"scope": "infer", "aud": nil}, http.StatusUnauthorized},
		{"empty audience", map[string]any{"scope": "infer", "aud": []string{}}, http.StatusUnauthorized},
		{"no subject", map[string]any{"scope": "infer", "sub": nil}, http.StatusUnauthorized},
	} {
		status := http.StatusOK
		var e *Error
		if _, err := v.Verify(forge(key, goodHeader, with(c.change))); errors.As(err, &e) {
			status = e.HTTPStatus()
		}
		if status != c.status {
			t.Errorf("%s: got %d; want %d", c.name, status, c.status)
		}
	}
	for name, cfg := range map[string]VerifierConfig{
		"no issuer":        {Audience: ClientAudience},
		"no audience":      {Issuer: "issuer"},
		"unknown audience": {Issuer: "issuer", Audience: "*"},
	} {
		if _, err := NewVerifier(cfg, v.issuers["issuer"].Keys); err == nil {
			t.Errorf("%s: a verifier that checks nothing was made", name)
		}
	}
	if _, err := keys.Trust(); err == nil {
		t.Error("an empty set of keys was made")
	}
}

// Unknown key ids cost no signature check and no fetch, and leave nothing behind.
func TestFault36UnknownKeys(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	claims := with(nil)
	for i := range 500 {
		_, err := v.Authenticate(forge(key, fmt.Sprintf(`{"alg":"EdDSA","kid":"x%d","typ":"at+jwt"}`, i), claims))
		refused(t, "unknown key", err)
	}
	if got := v.verdicts.len(); got != 0 {
		t.Errorf("%d verdicts are remembered; want 0", got)
	}
	if _, err := v.Authenticate(mint(t, key, Grant{})); err != nil {
		t.Errorf("a valid token after the flood: %v", err)
	}
}
