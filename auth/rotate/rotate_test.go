package rotate

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/internal/authtest"
	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func rotate(t *testing.T, r Rotation) Rotated {
	t.Helper()
	done, err := r.Rotate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// signer loads the key by which those who sign find it.
func signer(t testing.TB, dir string) *keys.Key {
	t.Helper()
	k, err := keys.Load(filepath.Join(dir, "current.jwk"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// folderKeys returns the ids of the keys that each of the two ways to read a folder gives; they must be the same.
func folderKeys(t testing.TB, dir string) []string {
	t.Helper()
	files, err := keys.LoadTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "jwks.json"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := keys.ParseJWKS(b)
	if err != nil || set.Others > 0 {
		t.Fatalf("the key set: %v, %d keys of no use", err, set.Others)
	}
	for id := range set.Keys {
		if !slices.Contains(files.IDs(), id) {
			t.Errorf("key %s is in the key set alone", id)
		}
	}
	if len(set.Keys) != len(files.IDs()) {
		t.Errorf("%d keys in the key set, %d in the folder", len(set.Keys), len(files.IDs()))
	}
	return files.IDs()
}

// privateFiles returns the names of the files with a private part.
func privateFiles(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(`"d"`)) {
			names = append(names, e.Name())
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v; want 0600", e.Name(), info.Mode(), err)
			}
		}
	}
	return names
}

func TestRotateKeepsOldPublicKeysForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "keys")
		r := Rotation{Dir: dir, PublishAhead: 6 * time.Minute, RetireAfter: 24 * time.Hour}
		start := time.Now()
		a := rotate(t, r)
		if a.Previous != "" || time.Since(start) != 0 {
			t.Errorf("the first key replaces %q after %v; want none, at once", a.Previous, time.Since(start))
		}
		var waited time.Duration
		r.Waiting = func(_ *keys.Key, d time.Duration) { waited = d }
		r.Algorithm = keys.ES256
		b := rotate(t, r)
		if b.Previous != a.Current.ID || time.Since(start) != 6*time.Minute || waited != 6*time.Minute {
			t.Errorf("replaced %s after %v; want %v after 6m", b.Previous, time.Since(start), a.Current)
		}
		if got := signer(t, dir); got.ID != b.Current.ID || got.Algorithm() != keys.ES256 {
			t.Errorf("%v signs; want %v", got, b.Current)
		}
		if got := folderKeys(t, dir); len(got) != 2 {
			t.Errorf("keys %v; want the old one too", got)
		}
		if got := privateFiles(t, dir); len(got) != 1 || got[0] != "current.jwk" {
			t.Errorf("private keys in %v; want current.jwk alone", got)
		}
		r.Algorithm = ""
		time.Sleep(24*time.Hour - 7*time.Minute)
		if c := rotate(t, r); len(c.Removed) != 0 || c.Current.Algorithm() != keys.ES256 {
			t.Errorf("removed %v, new key for %s; want none yet, and ES256 as before", c.Removed, c.Current.Algorithm())
		}
		if d := rotate(t, r); !slices.Equal(d.Removed, []string{a.Current.ID}) {
			t.Errorf("removed %v; want %v", d.Removed, a.Current)
		}
		r.PublishAhead, r.RetireAfter = 0, 0 // a key has leaked
		e := rotate(t, r)
		if got := folderKeys(t, dir); !slices.Equal(got, []string{e.Current.ID}) {
			t.Errorf("keys %v; want the new one alone", got)
		}
	})
}

func TestRotateTakesOverWhatKeysNewMade(t *testing.T) {
	dir := t.TempDir()
	old := keytest.New(t, "old")
	if _, _, err := keys.Write(dir, old); err != nil {
		t.Fatal(err)
	}
	done := rotate(t, Rotation{Dir: dir, RetireAfter: time.Hour})
	if done.Previous != "old" {
		t.Errorf("replaced %q; want old", done.Previous)
	}
	if got := privateFiles(t, dir); !slices.Equal(got, []string{"current.jwk"}) {
		t.Errorf("private keys in %v; want current.jwk alone", got)
	}
	if got := folderKeys(t, dir); len(got) != 2 || !slices.Contains(got, "old") {
		t.Errorf("keys %v; want old and another", got)
	}
	if _, _, err := keys.Write(dir, keytest.New(t, "stray")); err != nil {
		t.Fatal(err)
	}
	if _, err := (Rotation{Dir: dir, RetireAfter: time.Hour}).Rotate(t.Context()); err == nil || !strings.Contains(err.Error(), "stray.jwk") {
		t.Errorf("a second private key: got %v; want an error that names it", err)
	}
	if got := signer(t, dir); got.ID != done.Current.ID {
		t.Errorf("%v signs after the error; want %v", got, done.Current)
	}
}

// A rotation that is stopped before any change of a file leaves a folder that signs and verifies, and the next call
// finishes it.
func TestRotateStoppedAnywhere(t *testing.T) {
	for _, first := range []bool{false, true} {
		for at := 1; ; at++ {
			if !stoppedAt(t, at, first) {
				if at < 10 {
					t.Errorf("only %d steps", at-1)
				}
				break
			}
		}
	}
}

// stoppedAt reports whether a rotation has so many steps.
func stoppedAt(t *testing.T, at int, first bool) (stopped bool) {
	dir := t.TempDir()
	r := Rotation{Dir: dir, RetireAfter: 24 * time.Hour}
	var tokens []string
	if !first {
		r.RetireAfter = 0
		rotate(t, r)
		tokens = append(tokens, authtest.Mint(t, signer(t, dir), auth.Grant{}))
	}
	r.RetireAfter = 24 * time.Hour
	valid := func(when string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "jwks.json"))
		if err != nil {
			t.Fatal(err)
		}
		published, err := keys.ParseJWKS(b)
		if err != nil {
			t.Fatal(err)
		}
		files, err := keys.LoadTrusted(dir)
		if err != nil {
			t.Fatal(err)
		}
		set := keytest.Trust(t, slices.Collect(maps.Values(published.Keys))...)
		for from, trusted := range map[string]*keys.Trusted{"files": files, "key set": set} {
			v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: "issuer", Audience: auth.ClientAudience}, trusted)
			if err != nil {
				t.Fatal(err)
			}
			for _, token := range tokens {
				if _, err := v.Authenticate(token); err != nil {
					t.Errorf("step %d, first %t, %s, %s: a valid token is refused: %v", at, first, when, from, err)
				}
			}
		}
	}
	func() {
		defer func() { stopped = recover() != nil }()
		n := 0
		r.step = func() {
			if n++; n == at {
				panic("killed")
			}
		}
		rotate(t, r)
	}()
	if _, err := os.Stat(filepath.Join(dir, "current.jwk")); err == nil {
		tokens = append(tokens, authtest.Mint(t, signer(t, dir), auth.Grant{}))
		valid("stopped")
	} else if !first {
		t.Errorf("step %d: nothing signs: %v", at, err)
	}
	r.step = nil
	rotate(t, r)
	tokens = append(tokens, authtest.Mint(t, signer(t, dir), auth.Grant{}))
	valid("gone on")
	if got := privateFiles(t, dir); !slices.Equal(got, []string{"current.jwk"}) {
		t.Errorf("step %d: private keys in %v; want current.jwk alone", at, got)
	}
	return stopped
}

func TestRotateStoppedWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := Rotation{Dir: dir, PublishAhead: 6 * time.Minute, RetireAfter: time.Hour}
		a := rotate(t, r)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := r.Rotate(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v; want the end of the context", err)
		}
		if got := signer(t, dir); got.ID != a.Current.ID {
			t.Errorf("%v signs; want still %v", got, a.Current)
		}
		wrong := r
		wrong.Algorithm = keys.ES256
		if _, err := wrong.Rotate(t.Context()); err == nil {
			t.Error("another algorithm than the one that was begun with was accepted")
		}
		start := time.Now()
		if b := rotate(t, r); b.Previous != a.Current.ID || time.Since(start) != 4*time.Minute {
			t.Errorf("replaced %s after %v; want %v after the 4 minutes that were left", b.Previous, time.Since(start), a.Current)
		}
	})
}

// Two rotations at a time: both wait for the same key, and one of them swaps it in.
func TestRotateTwiceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := Rotation{Dir: dir, PublishAhead: time.Minute, RetireAfter: time.Hour}
		rotate(t, r)
		var mu sync.Mutex
		var done []error
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				_, err := r.Rotate(t.Context())
				mu.Lock()
				defer mu.Unlock()
				done = append(done, err)
			})
			synctest.Wait()
		}
		both.Wait()
		if (done[0] == nil) == (done[1] == nil) {
			t.Errorf("got %v; want one to fail", done)
		}
		if got := folderKeys(t, dir); len(got) != 2 {
			t.Errorf("keys %v; want two", got)
		}
	})
}

// Bearers sign with the current key and verifiers read the key set, both all the while, and no token is refused.
func TestFault38FolderRotatesWithoutARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := Rotation{Dir: dir, PublishAhead: 6 * time.Minute, RetireAfter: time.Hour}
		rotate(t, r)
		j := keytest.RunJWKS(t, keys.JWKSConfig{URL: filepath.Join(dir, "jwks.json")}, nil)
		files, err := keys.LoadTrusted(dir)
		if err != nil {
			t.Fatal(err)
		}
		var verifiers []*auth.Verifier
		for _, source := range []keys.Source{j, files} {
			v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: "issuer", Audience: auth.ClientAudience}, source)
			if err != nil {
				t.Fatal(err)
			}
			verifiers = append(verifiers, v)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { // as the gateway does with key files
			for ctx.Err() == nil {
				_ = files.Reload() // fails where a file goes between the list and the reading: the next one has it
				time.Sleep(10 * time.Second)
			}
		})
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					token := authtest.Mint(t, signer(t, dir), auth.Grant{TTL: time.Hour})
					for range 59 {
						for _, v := range verifiers {
							if _, err := v.Authenticate(token); err != nil {
								t.Errorf("a valid token was refused: %v", err)
							}
						}
						time.Sleep(time.Minute)
					}
				}
			})
		}
		seen := map[string]bool{}
		for i := range 8 {
			r.Algorithm = []string{keys.EdDSA, keys.ES256}[i%2]
			done := rotate(t, r)
			if seen[done.Current.ID] = true; len(seen) != i+1 {
				t.Errorf("rotation %d did not bring a new key", i)
			}
			time.Sleep(17 * time.Minute)
		}
		last := signer(t, dir)
		token := authtest.Mint(t, last, auth.Grant{})
		cancel()
		all.Wait()
		r.PublishAhead, r.RetireAfter = 0, 0
		rotate(t, r) // the last key has leaked
		time.Sleep(5 * time.Minute)
		if err := files.Reload(); err != nil {
			t.Error(err)
		}
		for _, v := range verifiers {
			_, err := v.Authenticate(token)
			authtest.Refused(t, "withdrawn key", err)
		}
	})
}
