package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Keys is a set of trusted public keys from files. Several at once are how keys rotate: add the new one everywhere,
// mint with it, withdraw the old one when its last token has ended. It is safe for concurrent use.
type Keys struct {
	paths []string
	set   atomic.Pointer[keySet] // replaced whole

	mu   sync.Mutex
	last map[string]*Key // what each file had when it was last sound
}

// KeySource is where a verifier finds the keys that it trusts: Keys from files, or an issuer's JWKS.
type KeySource interface {
	// current returns the keys that hold now. It does no I/O and does not wait.
	current() *keySet
	// missed hints that a token named a key which the set does not have, so that a source which can ask its issuer may
	// do so sooner than planned. It never waits, and whoever calls it often gains nothing.
	missed(kid string)
}

// keySet is the keys that held at one moment. It is never changed: another set is another pointer, and voids every
// verdict that was found under this one.
type keySet struct {
	byID map[string]*Key
	// until is when the set is too old to be believed, because its issuer could not be asked for so long; zero is never.
	until time.Time
}

// current implements KeySource.
func (k *Keys) current() *keySet { return k.set.Load() }

// missed implements KeySource: files are read again by Reload alone.
func (k *Keys) missed(string) {}

// NewKeys returns a set of the public parts of these keys.
func NewKeys(keys ...*Key) (*Keys, error) {
	k := &Keys{}
	set := map[string]*Key{}
	for _, key := range keys {
		if err := add(set, key); err != nil {
			return nil, fmt.Errorf("auth: keys: %w", err)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("auth: keys: none given")
	}
	k.set.Store(&keySet{byID: set})
	return k, nil
}

// LoadKeys reads keys from files, and from the .jwk and .pem files of folders. Private parts are dropped.
func LoadKeys(paths ...string) (*Keys, error) {
	k := &Keys{paths: paths}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Reload reads the files again. Keys whose files are gone are gone, whatever else is wrong; a file that cannot be used
// keeps the key it had. The error names all of these, and that no key is left.
func (k *Keys) Reload() error {
	if k.paths == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	found, errs := k.readLocked()
	set := map[string]*Key{}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		if err := add(set, found[file]); err != nil {
			errs = append(errs, fmt.Errorf("key file %s: %w", file, err))
		}
	}
	if len(set) == 0 {
		errs = append(errs, fmt.Errorf("no key in %s", strings.Join(k.paths, ", ")))
	}
	err := errors.Join(errs...)
	if err != nil {
		err = fmt.Errorf("auth: keys: %w", err)
	}
	old := k.set.Load()
	if old == nil && err != nil {
		return err // nobody begins with less than was named
	}
	k.last = found
	if old == nil || !maps.EqualFunc(old.byID, set, (*Key).same) { // another pointer voids every verdict
		k.set.Store(&keySet{byID: set})
	}
	return err
}

// readLocked returns the key of each file. Who rotates keys renames files: if one has gone since its folder was read, the
// folders are read again.
func (k *Keys) readLocked() (found map[string]*Key, errs []error) {
	for range 5 {
		found, errs = map[string]*Key{}, nil
		renamed := false
		for _, path := range k.paths {
			files, err := keyFiles(path)
			if err != nil {
				errs = append(errs, err)
				if !errors.Is(err, fs.ErrNotExist) {
					k.keepLocked(found, path)
				}
			}
			for _, file := range files {
				key, err := LoadKey(file)
				switch {
				case err == nil:
					found[file] = key
				case errors.Is(err, fs.ErrNotExist):
					renamed = true
					errs = append(errs, err)
				default:
					errs = append(errs, err)
					k.keepLocked(found, file)
				}
			}
		}
		if !renamed {
			break
		}
	}
	return found, errs
}

// keepLocked takes over what is known of a file, or of the files of a folder.
func (k *Keys) keepLocked(found map[string]*Key, path string) {
	for file, key := range k.last {
		if file == path || filepath.Dir(file) == filepath.Clean(path) {
			found[file] = key
		}
	}
}

// add puts the public part of a key into a set. Two files may hold the same key, but not two keys of one id.
func add(set map[string]*Key, key *Key) error {
	if old := set[key.ID]; old != nil && !old.same(key) {
		return fmt.Errorf("two keys have the id %s", key.ID)
	}
	for _, other := range set {
		if other.Development() != key.Development() {
			return errors.New("a development secret stands beside another key")
		}
	}
	set[key.ID] = key.Public()
	return nil
}

func keyFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries { // mounted secrets are links: their kind says nothing
		if ext := filepath.Ext(e.Name()); ext == ".jwk" || ext == ".pem" {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// IDs returns the ids of the keys, sorted.
func (k *Keys) IDs() []string { return slices.Sorted(maps.Keys(k.current().byID)) }

func (k *Keys) find(id string) (*Key, bool) {
	key, ok := k.current().byID[id]
	return key, ok
}
