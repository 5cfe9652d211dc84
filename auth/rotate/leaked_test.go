package rotate

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// leakedFolder returns a folder in which a rotation waits, with a retired key, a stray one and a damaged one, and the ids
// of all of them.
func leakedFolder(t *testing.T) (dir string, ids []string) {
	t.Helper()
	dir = t.TempDir()
	ids = append(ids, rotate(t, Rotation{Dir: dir, Algorithm: keys.ES256, RetireAfter: time.Hour}).Current.ID)
	ids = append(ids, rotate(t, Rotation{Dir: dir, RetireAfter: time.Hour}).Current.ID)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r := Rotation{Dir: dir, PublishAhead: time.Hour, RetireAfter: time.Hour, Waiting: func(next *keys.Key, _ time.Duration) {
		ids = append(ids, next.ID)
		stop()
	}}
	if _, err := r.Rotate(ctx); err == nil {
		t.Fatal("the rotation did not wait")
	}
	stray := keytest.New(t, "stray")
	if _, _, err := keys.Write(dir, stray); err != nil {
		t.Fatal(err)
	}
	keytest.Write(t, filepath.Join(dir, "pem.pem"), keytest.PEM("PRIVATE KEY", keytest.Must(t)(x509.MarshalPKCS8PrivateKey(keytest.Generate(t, keys.ES256).SigningPart()))))
	keytest.Write(t, filepath.Join(dir, "damaged.pub.jwk"), "{")
	keytest.Write(t, filepath.Join(dir, "authority.pem"), keytest.PEM("CERTIFICATE", []byte("no key")))
	return dir, append(ids, "stray")
}

// Whoever has the folder has the key that waits in it too.
func TestRotateLeaked(t *testing.T) {
	for name, r := range map[string]Rotation{
		"leaked":                   {Leaked: true, PublishAhead: 6 * time.Minute, RetireAfter: 24 * time.Hour},
		"nothing is kept":          {},
		"to another kind":          {Leaked: true, Algorithm: keys.EdDSA},
		"what is there is damaged": {Leaked: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir, ids := leakedFolder(t)
			r.Dir = dir
			if name == "what is there is damaged" {
				keytest.Write(t, filepath.Join(dir, "current.jwk"), "{")
				keytest.Write(t, filepath.Join(dir, "next.jwk"), "{")
			}
			start := time.Now()
			done := rotate(t, r)
			if time.Since(start) != 0 || slices.Contains(ids, done.Current.ID) {
				t.Errorf("%s: %v signs after %v; want a fresh key at once", name, done.Current, time.Since(start))
			}
			if got := signer(t, dir); !got.Equal(done.Current) {
				t.Errorf("%s: %v signs; want %v", name, got, done.Current)
			}
			if name == "leaked" && (done.Current.Algorithm() != keys.ES256 || done.Previous != ids[1] || !slices.Contains(done.Removed, "stray") || !slices.Contains(done.Removed, ids[2])) {
				t.Errorf("got %+v for %s; want ES256 as before, and all but the new key removed", done, done.Current.Algorithm())
			}
			if err := os.Remove(filepath.Join(dir, "authority.pem")); err != nil {
				t.Errorf("%s: what is no key was touched: %v", name, err)
			}
			if got := folderKeys(t, dir); !slices.Equal(got, []string{done.Current.ID}) {
				t.Errorf("%s: keys %v; want the new one alone", name, got)
			}
			if got := privateFiles(t, dir); !slices.Equal(got, []string{"current.jwk"}) {
				t.Errorf("%s: private keys in %v; want current.jwk alone", name, got)
			}
		})
	}
}

// Wherever it is stopped, doing it again ends with a fresh key, and an ordinary rotation does not sign with what waited.
func TestRotateLeakedStoppedAnywhere(t *testing.T) {
	for _, again := range []Rotation{{Leaked: true}, {RetireAfter: time.Hour}} {
		for at, stopped := 1, true; stopped; at++ {
			dir, ids := leakedFolder(t)
			for _, name := range []string{"stray.jwk", "stray.pub.jwk", "pem.pem", "damaged.pub.jwk", "authority.pem"} { // an ordinary one refuses them
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			func() {
				defer func() { stopped = recover() != nil }()
				n := 0
				rotate(t, Rotation{Dir: dir, Leaked: true, step: func() {
					if n++; n == at+1 { // the first step removes what waits
						panic("killed")
					}
				}})
			}()
			again.Dir = dir
			done := rotate(t, again)
			if got := signer(t, dir); slices.Contains(ids, got.ID) || got.ID != done.Current.ID {
				t.Errorf("step %d: %v signs; want a fresh key", at, got)
			}
			if got := folderKeys(t, dir); again.Leaked && len(got) != 1 {
				t.Errorf("step %d: keys %v; want the new one alone", at, got)
			}
			if !stopped && at < 6 {
				t.Errorf("only %d steps", at)
			}
		}
	}
}
