package client

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// TokenFile returns a function that returns the token in a file, read again whenever the file has changed, so that a
// token can be renewed under a running process. While the file cannot be read, the last token is returned.
func TokenFile(path string) func() (string, error) {
	t := &tokenFile{path: path}
	return t.token
}

type tokenFile struct {
	path string

	mu      sync.Mutex
	changed time.Time
	size    int64
	last    string
}

func (t *tokenFile) token() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(t.path)
	if err == nil && (t.last == "" || !info.ModTime().Equal(t.changed) || info.Size() != t.size) {
		var b []byte
		if b, err = os.ReadFile(t.path); err == nil {
			if s := strings.TrimSpace(string(b)); s != "" {
				t.last, t.changed, t.size = s, info.ModTime(), info.Size()
			} else {
				err = errors.New("file is empty")
			}
		}
	}
	if t.last != "" {
		return t.last, nil
	}
	return "", fmt.Errorf("metadata: token file %s: %w", t.path, err)
}
