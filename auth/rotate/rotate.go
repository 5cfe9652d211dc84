// Package rotate replaces the signing key of a folder, for "pdrouter keys rotate": the next key is published before it signs, and the one
// before stays published until its last token has ended. Every change is one rename or one removal, so that a call that was stopped can be
// repeated. Verifiers read the folder by package keys.
package rotate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pdrouter/auth/internal/files"
	"pdrouter/auth/keys"
)

// The files of a folder whose signing key is rotated, besides <kid>.pub.jwk for each public key.
const (
	currentKeyFile = "current.jwk" // the private key that signs; replaced by one rename
	nextKeyFile    = "next.jwk"    // the private key that will, once its public part has been published for long enough
	jwksFile       = "jwks.json"   // the public keys as a key set
)

// Rotation says how the signing key of a folder is replaced, so that no valid token is refused: the new public key is
// published some time before anything is signed with it, and the old one stays for as long as its tokens may live. The
// old private key is gone as soon as the new one signs.
type Rotation struct {
	Dir string // made if need be
	// Algorithm is of the new key: EdDSA, ES256 or RS256. Default that of the current key, or EdDSA.
	Algorithm string
	// PublishAhead is how long the new public key is published before it signs: at least the time after which every
	// verifier has read the keys again. 0 for at once. The first key of a folder is never waited for.
	PublishAhead time.Duration
	// RetireAfter is how long a public key stays after it has been replaced: at least the longest life of a token.
	RetireAfter time.Duration
	// Leaked says that whoever should not may have what lies in the folder, the key that waits to sign included: a fresh
	// key signs at once, and every other one is removed, whatever PublishAhead and RetireAfter are. Both of them 0 is the
	// same.
	Leaked bool
	// JWKSFile is where the public keys are written as a key set. Default jwks.json in Dir.
	JWKSFile string
	// Waiting is told how long Rotate waits for the new key to be known. May be nil.
	Waiting func(next *keys.Key, d time.Duration)

	step func() // in tests: called before each change of a file
}

// Rotated is what a rotation did.
type Rotated struct {
	Current  *keys.Key // the new key, with its private part
	Path     string    // of the file of the key that signs: the same after every rotation
	Previous string    // id of the key that it replaced; "" for none
	JWKSFile string
	Removed  []string // ids of the public keys that were retired for long enough
}

// Rotate replaces the signing key of the folder. Whenever it is stopped, the folder can be used, and another call goes
// on where it stopped. It waits for PublishAhead, unless ctx ends. Two at a time do not harm: one of them fails.
func (r Rotation) Rotate(ctx context.Context) (Rotated, error) {
	if r.JWKSFile == "" {
		r.JWKSFile = filepath.Join(r.Dir, jwksFile)
	}
	done, err := r.rotate(ctx)
	if err != nil {
		return Rotated{}, fmt.Errorf("auth: rotate the key of %s: %w", r.Dir, err)
	}
	return done, nil
}

func (r Rotation) rotate(ctx context.Context) (Rotated, error) {
	if r.Dir == "" || r.PublishAhead < 0 || r.RetireAfter < 0 {
		return Rotated{}, fmt.Errorf("publish ahead is %v, retire after is %v; want a folder, and neither below 0", r.PublishAhead, r.RetireAfter)
	}
	f := keyFolder{dir: r.Dir, step: r.step}
	if err := f.open(); err != nil {
		return Rotated{}, err
	}
	if r.Leaked || r.PublishAhead == 0 && r.RetireAfter == 0 {
		return r.replaceAll(f)
	}
	current, err := f.adopt()
	if err != nil {
		return Rotated{}, err
	}
	next, err := r.prepare(f, current)
	if err != nil {
		return Rotated{}, err
	}
	since, err := f.publish(next)
	if err != nil {
		return Rotated{}, err
	}
	if current != nil {
		if _, err := f.publish(current); err != nil {
			return Rotated{}, err
		}
	}
	if err := f.writeJWKS(r.JWKSFile); err != nil {
		return Rotated{}, err
	}
	if current != nil {
		if err := r.wait(ctx, next, since); err != nil {
			return Rotated{}, err
		}
	}
	if err := f.swap(next); err != nil {
		return Rotated{}, err
	}
	done := Rotated{Current: next, Path: filepath.Join(r.Dir, currentKeyFile), JWKSFile: r.JWKSFile}
	if current != nil {
		done.Previous = current.ID
	}
	if done.Removed, err = f.retire(next, r.RetireAfter); err != nil {
		return Rotated{}, err
	}
	return done, f.writeJWKS(r.JWKSFile)
}

// prepare returns the key that is to sign next: the one that an earlier call left, or a new one.
func (r Rotation) prepare(f keyFolder, current *keys.Key) (*keys.Key, error) {
	next, err := f.private(nextKeyFile)
	if err != nil {
		return nil, err
	}
	algorithm := r.Algorithm
	switch {
	case algorithm == "" && next != nil:
		algorithm = next.Algorithm()
	case algorithm == "" && current != nil:
		algorithm = current.Algorithm()
	case algorithm == "":
		algorithm = keys.EdDSA
	}
	if next != nil {
		if next.Algorithm() != algorithm {
			return nil, fmt.Errorf("%s was left by a rotation to %s; go on with that, or remove it", nextKeyFile, next.Algorithm())
		}
		return next, nil
	}
	if next, err = keys.Generate(algorithm); err != nil {
		return nil, err
	}
	b, err := next.JWK()
	if err != nil {
		return nil, err
	}
	return next, f.write(f.path(nextKeyFile), b, 0o600)
}

// wait returns when the key has been published for long enough.
func (r Rotation) wait(ctx context.Context, next *keys.Key, since time.Time) error {
	d := min(time.Until(since.Add(r.PublishAhead)), r.PublishAhead) // a clock that was set back makes it no longer
	if d <= 0 {
		return nil
	}
	if r.Waiting != nil {
		r.Waiting(next, d)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("stopped before %v signs; another call goes on: %w", next, ctx.Err())
	case <-time.After(d):
		return nil
	}
}

// swap makes next the key that signs. The private part of the one before is gone with it.
func (f keyFolder) swap(next *keys.Key) error {
	there, err := f.private(nextKeyFile)
	if err != nil {
		return err
	}
	if there == nil || !there.Equal(next) {
		return errors.New("another rotation of this folder is under way")
	}
	f.before()
	if err := os.Rename(f.path(nextKeyFile), f.path(currentKeyFile)); err != nil {
		return err
	}
	return files.SyncDir(f.dir)
}
