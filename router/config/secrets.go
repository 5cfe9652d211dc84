package config

import (
	"fmt"
	"os"
	"strings"
)

// Secrets are the contents of the files with the engines' credentials and certificates, by path. The zero value is ready to use. It
// is not safe for concurrent use.
type Secrets struct {
	known map[string]string // contents that need not be read again
	used  map[string]string
}

// NewSecrets returns Secrets that do not read the files again that old has used. So a file that was removed, or is being written, does no
// harm while only engines come and go. old may be nil.
func NewSecrets(old *Secrets) *Secrets {
	if old == nil {
		return new(Secrets)
	}
	return &Secrets{known: old.used}
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

// Read returns the contents of the file that a key of an entry names, without surrounding white space.
func (s *Secrets) Read(key, file string) (string, error) {
	text, ok := s.used[file]
	if !ok {
		text, ok = s.known[file]
	}
	if !ok {
		info, err := os.Stat(file)
		if err == nil && !info.Mode().IsRegular() { // reading a pipe would wait for its writer
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
func (s *Secrets) String() string { return "(secrets)" }
