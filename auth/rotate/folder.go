package rotate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pdrouter/auth/internal/files"
	"pdrouter/auth/keys"
)

const publicSuffix = ".pub.jwk"

// keyFolder is a folder whose signing key is rotated. Every change is one rename or one removal.
type keyFolder struct {
	dir  string
	step func()
}

// publicKey is a public key's file: a JWK with two members more, which other readers pass over.
type publicKey struct {
	key       *keys.Key
	path      string
	published time.Time // when others could first read it
	retired   time.Time // when another key began to sign in its place; zero while it signs or will
}

func (f keyFolder) path(name string) string { return filepath.Join(f.dir, name) }

// before is called before each change.
func (f keyFolder) before() {
	if f.step != nil {
		f.step()
	}
}

// files returns the paths of the files with such a name.
func (f keyFolder) files(prefix, suffix string) ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			paths = append(paths, f.path(e.Name()))
		}
	}
	return paths, nil
}

// open makes the folder if need be, and removes what a call that was stopped had not finished writing.
func (f keyFolder) open() error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	left, err := f.files(files.Unfinished, files.UnfinishedEnd)
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// private returns the private key of a file; nil if there is no such file.
func (f keyFolder) private(name string) (*keys.Key, error) {
	k, err := keys.Load(f.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !k.Signs() {
		err = fmt.Errorf("%s has no private part", name)
	}
	return k, err
}

// adopt returns the key that signs; nil for a new folder. A folder with one private key under another name, as keys.Write
// makes it, becomes one to rotate: the key gets the name by which those who sign find it.
func (f keyFolder) adopt() (*keys.Key, error) {
	current, err := f.private(currentKeyFile)
	if err != nil {
		return nil, err
	}
	files, err := keys.FilesIn(f.dir)
	if err != nil {
		return nil, err
	}
	var others []string
	for _, file := range files {
		if name := filepath.Base(file); name == currentKeyFile || name == nextKeyFile {
			continue
		}
		k, err := keys.Load(file)
		if err != nil {
			return nil, err
		}
		if k.Signs() {
			others = append(others, file)
		}
	}
	switch {
	case len(others) == 0:
		return current, nil
	case current != nil || len(others) > 1 || filepath.Ext(others[0]) != ".jwk":
		return nil, fmt.Errorf("%s is a private key besides the one that signs; move it elsewhere", strings.Join(others, ", "))
	}
	f.before()
	if err := os.Rename(others[0], f.path(currentKeyFile)); err != nil {
		return nil, err
	}
	return f.private(currentKeyFile)
}

// publics reads the files of public keys.
func (f keyFolder) publics() ([]publicKey, error) {
	paths, err := f.files("", publicSuffix)
	if err != nil {
		return nil, err
	}
	var all []publicKey
	for _, path := range paths {
		k, err := keys.Load(path)
		if err != nil {
			return nil, err
		}
		if k.Signs() {
			return nil, fmt.Errorf("%s has a private part", path)
		}
		b, _, err := files.ReadBounded(path, keys.MaxFile)
		if err != nil {
			return nil, err
		}
		var times struct {
			Published time.Time `json:"published_at"`
			Retired   time.Time `json:"retired_at"`
		}
		if err := json.Unmarshal(b, &times); err != nil {
			return nil, fmt.Errorf("%s: published_at or retired_at is no time", path)
		}
		all = append(all, publicKey{key: k, path: path, published: times.Published, retired: times.Retired})
	}
	return all, nil
}

// publish writes the public part of a key, unless it is there, and returns since when it has been.
func (f keyFolder) publish(k *keys.Key) (since time.Time, err error) {
	all, err := f.publics()
	if err != nil {
		return time.Time{}, err
	}
	for _, p := range all {
		if p.key.ID == k.ID && !p.key.Equal(k) {
			return time.Time{}, fmt.Errorf("%s has another key of the id %s", p.path, k.ID)
		}
		if p.key.ID == k.ID {
			return p.published, nil
		}
	}
	return f.publishNew(k)
}

// publishNew writes the public part of a key that is not there.
func (f keyFolder) publishNew(k *keys.Key) (since time.Time, err error) {
	if k.ID != filepath.Base(k.ID) || strings.HasPrefix(k.ID, ".") {
		return time.Time{}, fmt.Errorf("%q is no name for a file", k.ID)
	}
	p := publicKey{key: k.Public(), path: f.path(k.ID + publicSuffix), published: time.Now()}
	return p.published, f.writePublic(p)
}

func (f keyFolder) writePublic(p publicKey) error {
	b, err := p.key.JWK()
	if err != nil {
		return err
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for name, at := range map[string]time.Time{"published_at": p.published, "retired_at": p.retired} {
		if !at.IsZero() {
			m[name] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	if b, err = json.MarshalIndent(m, "", "  "); err != nil {
		return err
	}
	return f.write(p.path, append(b, '\n'), 0o644)
}

// retire notes of each public key but the one that signs that it has been replaced, and removes those for which that was
// long enough ago. It returns the ids of the latter.
func (f keyFolder) retire(current *keys.Key, after time.Duration) (removed []string, err error) {
	all, err := f.publics()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		signs := p.key.Equal(current)
		if signs != p.retired.IsZero() {
			p.retired = time.Time{}
			if !signs {
				p.retired = time.Now()
			}
			if err := f.writePublic(p); err != nil {
				return nil, err
			}
		}
		if signs || time.Since(p.retired) < after {
			continue
		}
		f.before()
		if err := os.Remove(p.path); err != nil {
			return nil, err
		}
		removed = append(removed, p.key.ID)
	}
	return removed, nil
}

// writeJWKS writes the public keys as a key set.
func (f keyFolder) writeJWKS(path string) error {
	all, err := f.publics()
	if err != nil {
		return err
	}
	var public []*keys.Key
	for _, p := range all {
		public = append(public, p.key)
	}
	return f.writeKeySet(path, public...)
}

func (f keyFolder) writeKeySet(path string, public ...*keys.Key) error {
	set, err := keys.Trust(public...)
	if err != nil {
		return err
	}
	b, err := set.JWKS()
	if err != nil {
		return err
	}
	return f.write(path, b, 0o644)
}

// write replaces a file whole: it is there in full before it gets its name.
func (f keyFolder) write(path string, b []byte, mode os.FileMode) error {
	f.before()
	name, err := files.WriteTemporary(path, b, mode, nil)
	if err != nil {
		return err
	}
	f.before()
	if err := os.Rename(name, path); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return files.SyncDir(filepath.Dir(path))
}
