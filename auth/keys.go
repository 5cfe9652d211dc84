package auth

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Keys is a set of trusted public keys from files. Several at once are how keys rotate: add the new one everywhere,
// mint with it, withdraw the old one when its last token has ended. It is safe for concurrent use.
type Keys struct {
	paths []string
	set   atomic.Pointer[keySet] // replaced whole
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

// Reload reads the files again. If any of them cannot be used, or there are none, the set stays as it was.
func (k *Keys) Reload() error {
	if k.paths == nil {
		return nil
	}
	set := map[string]*Key{}
	for _, path := range k.paths {
		files, err := keyFiles(path)
		if err != nil {
			return fmt.Errorf("auth: keys: %w", err)
		}
		for _, file := range files {
			key, err := LoadKey(file)
			if err == nil {
				err = add(set, key)
			}
			if err != nil {
				return fmt.Errorf("auth: keys: %w", err)
			}
		}
	}
	if len(set) == 0 {
		return fmt.Errorf("auth: keys: no .jwk or .pem file in %s", strings.Join(k.paths, ", "))
	}
	if old := k.set.Load(); old != nil && maps.EqualFunc(old.byID, set, (*Key).same) {
		return nil // another pointer would void every verdict
	}
	k.set.Store(&keySet{byID: set})
	return nil
}

// add puts the public part of a key into a set. Two files may hold the same key, but not two keys of one id.
func add(set map[string]*Key, key *Key) error {
	if old := set[key.ID]; old != nil && !old.same(key) {
		return fmt.Errorf("two keys have the id %s", key.ID)
	}
	set[key.ID] = key.Public()
	for _, other := range set {
		if other.Development() != key.Development() {
			return errors.New("a development secret stands beside another key")
		}
	}
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
