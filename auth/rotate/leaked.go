package rotate

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"pdrouter/auth/internal/files"
	"pdrouter/auth/keys"
)

// replaceAll makes a fresh key the one that signs, and removes all others. Nothing that lay in the folder signs or is
// trusted afterwards, and nothing that is damaged there stands in the way.
func (r Rotation) replaceAll(f keyFolder) (Rotated, error) {
	old, err := f.all()
	if err != nil {
		return Rotated{}, err
	}
	done := Rotated{Path: f.path(currentKeyFile), JWKSFile: r.JWKSFile}
	algorithm := r.Algorithm
	if current := old[done.Path]; current != nil {
		done.Previous, algorithm = current.ID, cmp.Or(algorithm, current.Algorithm())
	}
	if done.Current, err = keys.Generate(cmp.Or(algorithm, keys.EdDSA)); err != nil {
		return Rotated{}, err
	}
	if err := f.remove(f.path(nextKeyFile)); err != nil { // first of all: a rotation that goes on would sign with it
		return Rotated{}, err
	}
	if _, err := f.publishNew(done.Current); err != nil {
		return Rotated{}, err
	}
	if err := f.writeKeySet(r.JWKSFile, done.Current); err != nil {
		return Rotated{}, err
	}
	b, err := done.Current.JWK()
	if err != nil {
		return Rotated{}, err
	}
	if err := f.write(done.Path, b, 0o600); err != nil {
		return Rotated{}, err
	}
	for path, k := range old {
		if path != done.Path {
			if err := f.remove(path); err != nil {
				return Rotated{}, err
			}
		}
		if k != nil && !slices.Contains(done.Removed, k.ID) {
			done.Removed = append(done.Removed, k.ID)
		}
	}
	slices.Sort(done.Removed)
	return done, files.SyncDir(f.dir)
}

// all returns the files that a verifier may find keys in, with the key of each: nil for one that cannot be read. A PEM
// file that is none's key is passed over.
func (f keyFolder) all() (map[string]*keys.Key, error) {
	names, err := keys.FilesIn(f.dir)
	if err != nil {
		return nil, err
	}
	all := map[string]*keys.Key{}
	for _, path := range names {
		b, _, err := files.ReadBounded(path, keys.MaxFile)
		var k *keys.Key
		if err == nil {
			k, err = keys.Parse(b)
		}
		if err == nil || filepath.Ext(path) == ".jwk" {
			all[path] = k
		}
	}
	return all, nil
}

// remove removes a file, which need not be there.
func (f keyFolder) remove(path string) error {
	f.before()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
