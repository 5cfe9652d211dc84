package keys_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/internal/authtest"
	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func jwksVerifier(t *testing.T, j *keys.JWKS) *auth.Verifier {
	t.Helper()
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: "issuer", Audience: auth.ClientAudience}, j)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// stale fails the test unless err says that nobody can tell at present.
func stale(t *testing.T, name string, err error) {
	t.Helper()
	var e *auth.Error
	if !errors.As(err, &e) || e.Code != auth.JWKSStale || e.HTTPStatus() != http.StatusServiceUnavailable {
		t.Errorf("%s: got %v; want 503 jwks_stale", name, err)
	}
}

func TestFault36FloodOfUnknownKids(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := keytest.New(t, "k1")
		f := newFakeIssuer(t, known)
		v := jwksVerifier(t, keytest.RunJWKS(t, keys.JWKSConfig{}, f.transport()))
		good := authtest.Mint(t, known, auth.Grant{})
		_, rest, _ := strings.Cut(good, ".")
		flood := func(from int) {
			for i := range 300 {
				kid := fmt.Sprintf("forged-%d", from+i)
				head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"` + kid + `","typ":"at+jwt"}`))
				_, err := v.Authenticate(head + "." + rest)
				authtest.Refused(t, kid, err)
				if _, err := v.Authenticate(good); err != nil {
					t.Errorf("valid traffic in the flood: %v", err)
				}
				if i%3 == 0 {
					time.Sleep(time.Second)
				}
			}
		}
		start := time.Now()
		var floods sync.WaitGroup
		for i := range 4 {
			floods.Go(func() { flood(i * 300) })
		}
		floods.Wait()
		lasted := time.Since(start)
		if want := 100 * time.Second; lasted != want {
			t.Errorf("the flood took %v; want %v: somebody waited", lasted, want)
		}
		asked := f.questions()
		if got, most := len(asked), int(lasted/(10*time.Second))+1; got > most || got < 2 {
			t.Errorf("%d questions in %v; want 2 to %d", got, lasted, most)
		}
		for i := 1; i < len(asked); i++ {
			if d := asked[i].Sub(asked[i-1]); d < 10*time.Second {
				t.Errorf("two questions within %v; want 10s", d)
			}
		}

		time.Sleep(20 * time.Second) // what the flood asked for has been answered
		next := keytest.New(t, "k2") // the same hint is what brings a new key in
		f.publish(t, known, next)
		token := authtest.Mint(t, next, auth.Grant{})
		_, err := v.Authenticate(token)
		authtest.Refused(t, "before anybody asked", err)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, err := v.Authenticate(token); err != nil {
			t.Errorf("a new key after min_interval: %v", err)
		}
	})
}

// A server that fails is left alone, whatever ids are forged.
func TestFault36FloodAtAFailingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := keytest.New(t, "k1")
		f := newFakeIssuer(t, known)
		j := keytest.RunJWKS(t, keys.JWKSConfig{}, f.transport())
		f.will(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		for range 10 * 60 {
			j.Missed("forged")
			time.Sleep(time.Second)
		}
		asked := f.questions()
		if got, most := len(asked), 2+3+10; got > most {
			t.Errorf("%d questions in 10 minutes of failures; want at most %d", got, most)
		}
		if d := asked[len(asked)-1].Sub(asked[len(asked)-2]); d < time.Minute || d > 75*time.Second {
			t.Errorf("after many failures %v between two questions; want 1m to 75s", d)
		}
	})
}

func TestFault37BadAnswersNeverReplaceTheLastGoodSet(t *testing.T) {
	known, other := keytest.New(t, "k1"), keytest.New(t, "other")
	weak := `{"kty":"RSA","kid":"weak","alg":"RS256","n":"` + strings.Repeat("_", 171) + `","e":"AQAB"}`
	twice := strings.Replace(jwksOf(t, known, other), `"other"`, `"k1"`, 1)
	for name, answer := range map[string]http.HandlerFunc{
		"error":        func(w http.ResponseWriter, _ *http.Request) { http.Error(w, jwksOf(t, other), 500) },
		"redirect":     http.RedirectHandler("https://elsewhere.example/keys", http.StatusFound).ServeHTTP,
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"HTML":         says("<html><body>Please sign in</body></html>"),
		"empty":        says(""),
		"empty object": says("{}"),
		"empty set":    says(`{"keys":[]}`),
		"no array":     says(`{"keys":{"k1":1}}`),
		"a bare list":  says("[" + weak + "]"),
		"one key":      says(weak),
		"weak keys":    says(`{"keys":[` + weak + `]}`),
		"secrets":      says(`{"keys":[{"kty":"oct","kid":"k1","k":"AAAA","alg":"HS256"}]}`),
		"one id twice": says(twice),
		"doubled name": says(`{"keys":[],` + jwksOf(t, other)[1:]),
		"truncated":    says(jwksOf(t, other)[:80]),
		"10 MB":        says(`{"keys":[` + strings.Repeat(" ", 10<<20) + jwksOf(t, other)[9:]),
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			fmt.Fprint(w, jwksOf(t, other))
		},
		"silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"trickle": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, " ")
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeIssuer(t, known)
				j := keytest.RunJWKS(t, keys.JWKSConfig{MaxStale: time.Hour}, f.transport())
				v := jwksVerifier(t, j)
				token := authtest.Mint(t, known, auth.Grant{TTL: 2 * time.Hour})
				set := j.Current()
				f.will(answer)
				time.Sleep(time.Hour - time.Second)
				if s := j.Stats(); s.Failures < 10 || s.Fetches-s.Failures > 2 || // one was good, one may be under way
					s.Stale || s.Keys != 1 || s.Age != time.Hour-time.Second {
					t.Errorf("got %+v; want failures, and one key of an hour less a second", s)
				}
				if _, err := v.Authenticate(token); err != nil || j.Current() != set {
					t.Errorf("before max_stale: %v", err)
				}
				time.Sleep(time.Second)
				_, err := v.Authenticate(token)
				stale(t, "remembered verdict after max_stale", err)
				_, err = v.Verify(token)
				stale(t, "after max_stale", err)
				_, err = v.Verify(authtest.Mint(t, other, auth.Grant{}))
				stale(t, "forged after max_stale", err)
				f.publish(t, known)
				time.Sleep(80 * time.Second) // the longest back-off, and the question before it
				if _, err := v.Authenticate(token); err != nil {
					t.Errorf("after recovery: %v", err)
				}
			})
		})
	}
}

func TestFault37DownFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := keytest.New(t, "k1")
		f := newFakeIssuer(t, known)
		transport := f.transport()
		var up atomic.Bool
		j := keytest.RunJWKS(t, keys.JWKSConfig{}, roundTripper(func(r *http.Request) (*http.Response, error) {
			if !up.Load() {
				return nil, errors.New("connection refused")
			}
			return transport.RoundTrip(r)
		}))
		v := jwksVerifier(t, j)
		token := authtest.Mint(t, known, auth.Grant{})
		for range 60 {
			_, err := v.Authenticate(token)
			stale(t, "before the first good answer", err)
			time.Sleep(time.Second)
		}
		up.Store(true)
		time.Sleep(75 * time.Second)
		if _, err := v.Authenticate(token); err != nil {
			t.Errorf("after the first good answer: %v", err)
		}
		if s := j.Stats(); s.Stale || s.Keys != 1 {
			t.Errorf("got %+v; want one key, not stale", s)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFault38JWKSRotatesWithoutARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := []*keys.Key{keytest.New(t, "k0"), keytest.Generate(t, keys.ES256), keytest.New(t, "k2"), keytest.New(t, "k3")}
		f := newFakeIssuer(t, kinds[0])
		j := keytest.RunJWKS(t, keys.JWKSConfig{}, f.transport())
		v := jwksVerifier(t, j)
		const refresh, timeout = 5 * time.Minute, 5 * time.Second

		var mu sync.Mutex
		signer := kinds[0]
		ctx, cancel := context.WithCancel(t.Context())
		var bearers sync.WaitGroup
		for range 4 {
			bearers.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					mine := authtest.Mint(t, signer, auth.Grant{TTL: time.Hour})
					mu.Unlock()
					for range 50 { // a token is used for 50 minutes of its hour
						if _, err := v.Authenticate(mine); err != nil && ctx.Err() == nil {
							t.Errorf("a valid token was refused: %v", err)
						}
						time.Sleep(time.Minute)
					}
				}
			})
		}
		for i := 1; i < len(kinds); i++ {
			f.publish(t, kinds[i-1], kinds[i])
			time.Sleep(refresh + timeout) // by now everybody has it
			mu.Lock()
			signer = kinds[i]
			mu.Unlock()
			time.Sleep(2 * time.Hour) // by now no token of the old key is left
			f.publish(t, kinds[i])
			time.Sleep(refresh + timeout)
			if got := j.Stats().Keys; got != 1 {
				t.Errorf("%d keys after withdrawal; want 1", got)
			}
		}
		cancel()
		bearers.Wait()

		last := authtest.Mint(t, kinds[3], auth.Grant{TTL: time.Hour})
		if _, err := v.Authenticate(last); err != nil {
			t.Fatal(err)
		}
		f.publish(t, kinds[0])
		time.Sleep(refresh + timeout)
		_, err := v.Authenticate(last)
		authtest.Refused(t, "withdrawn key, verdict remembered", err)
	})
}

// The same keys in a newer answer void no verdict.
func TestJWKSKeepsItsSetWhileNothingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeIssuer(t, keytest.New(t, "k1"))
		j := keytest.RunJWKS(t, keys.JWKSConfig{}, f.transport())
		set := j.Current()
		time.Sleep(time.Hour)
		if j.Current() != set || j.Stats().Fetches < 12 {
			t.Errorf("the set was replaced by an equal one, or not asked for: %+v", j.Stats())
		}
		asked := f.questions()
		for i := 1; i < len(asked); i++ {
			if d := asked[i].Sub(asked[i-1]); d > 5*time.Minute || d < 4*time.Minute {
				t.Errorf("%v between two questions; want 4m30s to 5m", d)
			}
		}
	})
}
