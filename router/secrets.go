package router

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"pdrouter/router/openai"
)

// secrets are what stands in the files with the engines' credentials and certificates, by the files' names. Those that a configuration had
// are not read again where only engines come and go: a file that is gone by then, or half written, is none of their business.
type secrets struct {
	known map[string]string // that need not be read
	used  map[string]string
}

// KeyError is what is wrong with a file of an engine's entry: its credential or a certificate. The error of Apply and Reload
// joins one for each engine whose file cannot be used.
type KeyError struct {
	Key  string // of the entry
	File string
	Err  error
}

// Error returns what was wrong.
func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// of returns what stands in the file that a key of an entry names, without the white space around it.
func (s *secrets) of(key, file string) (string, error) {
	text, ok := s.used[file]
	if !ok {
		text, ok = s.known[file]
	}
	if !ok {
		info, err := os.Stat(file)
		if err == nil && !info.Mode().IsRegular() { // a pipe would wait for who writes
			err = fmt.Errorf("%s is no regular file", file)
		}
		var b []byte
		if err == nil {
			b, err = os.ReadFile(file)
		}
		if err != nil {
			return "", &KeyError{key, file, err}
		}
		text = strings.TrimSpace(string(b))
	}
	if s.used == nil {
		s.used = make(map[string]string)
	}
	s.used[file] = text
	return text, nil
}

// String hides them.
func (s *secrets) String() string { return "(secrets)" }

// newSealer reads the key from the file, or draws one if there is none named; it goes on with the one that old has drawn.
func newSealer(cfg Config, old *openai.Sealer) (*openai.Sealer, error) {
	switch {
	case !cfg.IsolatePrefixCache:
		return nil, nil
	case cfg.PrefixCacheSecretFile != "":
		key, err := os.ReadFile(cfg.PrefixCacheSecretFile)
		if err != nil {
			return nil, fmt.Errorf("prefix_cache_secret_file: %w", err)
		}
		if key = bytes.TrimSpace(key); len(key) < openai.MinSealKey {
			return nil, fmt.Errorf("prefix_cache_secret_file %s has %d bytes; want %d or more", cfg.PrefixCacheSecretFile, len(key), openai.MinSealKey)
		}
		return &openai.Sealer{Key: key}, nil
	case old != nil:
		return old, nil
	}
	key := make([]byte, openai.MinSealKey)
	_, _ = rand.Read(key) // it never fails
	return &openai.Sealer{Key: key}, nil
}
