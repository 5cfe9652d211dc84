package keys

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

// Trusted is a set of trusted public keys from files. Several at once are how keys rotate: add the new one everywhere,
// mint with it, withdraw the old one when its last token has ended. It is safe for concurrent use.
type Trusted struct {
	paths []string
	set   atomic.Pointer[Set] // replaced whole

	mu   sync.Mutex
	last map[string]*Key // what each file had when it was last sound
}

// Source is where a verifier finds the keys that it trusts: Trusted from files, or an issuer's JWKS.
type Source interface {
	// Current returns the keys that hold now. It does no I/O and does not wait.
	Current() *Set
	// Missed hints that a token named a key which the set does not have, so that a source which can ask its issuer may
	// do so sooner than planned. It never waits, and whoever calls it often gains nothing.
	Missed(kid string)
}

// Set is the keys that held at one moment. It is never changed: another set is another pointer, and voids every
// verdict that was found under this one.
type Set struct {
	byID map[string]*Key
	// until is when the set is too old to be believed, because its issuer could not be asked for so long; zero is never.
	until time.Time
}

// NewSet returns a set of these keys, which is stale from until on; zero is never.
func NewSet(until time.Time, of ...*Key) *Set {
	s := &Set{byID: make(map[string]*Key, len(of)), until: until}
	for _, k := range of {
		s.byID[k.ID] = k
	}
	return s
}

// Find returns the key of that id.
func (s *Set) Find(id string) (*Key, bool) {
	key, ok := s.byID[id]
	return key, ok
}

// Stale reports whether the set is too old to be believed. at has a monotonic reading.
func (s *Set) Stale(at time.Time) bool { return !s.until.IsZero() && !at.Before(s.until) }

// Current implements Source.
func (k *Trusted) Current() *Set { return k.set.Load() }

// Missed implements Source: files are read again by Reload alone.
func (k *Trusted) Missed(string) {}

// Trust returns a set of the public parts of these keys.
func Trust(keys ...*Key) (*Trusted, error) {
	k := &Trusted{}
	set := map[string]*Key{}
	for _, key := range keys {
		if err := add(set, key); err != nil {
			return nil, fmt.Errorf("auth: keys: %w", err)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("auth: keys: none given")
	}
	k.set.Store(&Set{byID: set})
	return k, nil
}

// LoadTrusted reads keys from files, and from the .jwk and .pem files of folders. Private parts are dropped.
func LoadTrusted(paths ...string) (*Trusted, error) {
	k := &Trusted{paths: paths}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Reload reads the files again. Keys whose files are gone are gone, whatever else is wrong; a file that cannot be used
// keeps the key it had. The error names all of these, and that no key is left.
func (k *Trusted) Reload() error {
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
	if old == nil || !maps.EqualFunc(old.byID, set, (*Key).Equal) { // another pointer voids every verdict
		k.set.Store(&Set{byID: set})
	}
	return err
}

// readLocked returns the key of each file. Who rotates keys renames files: if one has gone since its folder was read, the
// folders are read again.
func (k *Trusted) readLocked() (found map[string]*Key, errs []error) {
	for range 5 {
		found, errs = map[string]*Key{}, nil
		renamed := false
		for _, path := range k.paths {
			files, err := FilesIn(path)
			if err != nil {
				errs = append(errs, err)
				if !errors.Is(err, fs.ErrNotExist) {
					k.keepLocked(found, path)
				}
			}
			for _, file := range files {
				key, err := Load(file)
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
func (k *Trusted) keepLocked(found map[string]*Key, path string) {
	for file, key := range k.last {
		if file == path || filepath.Dir(file) == filepath.Clean(path) {
			found[file] = key
		}
	}
}

// add puts the public part of a key into a set. Two files may hold the same key, but not two keys of one id.
func add(set map[string]*Key, key *Key) error {
	if old := set[key.ID]; old != nil && !old.Equal(key) {
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

// FilesIn returns the path of a file, or the paths of the .jwk and .pem files of a folder.
func FilesIn(path string) ([]string, error) {
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
func (k *Trusted) IDs() []string { return slices.Sorted(maps.Keys(k.Current().byID)) }

// Find returns the key of that id.
func (k *Trusted) Find(id string) (*Key, bool) { return k.Current().Find(id) }
