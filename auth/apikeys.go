package auth

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
)

const (
	apiKeyPrefix = "pdr_"
	maxAPIKeys   = 10_000
)

// APIKeys is a set of clients' keys of which only digests are kept. It is safe for concurrent use.
type APIKeys struct {
	path    string
	entries atomic.Pointer[[]apiKey] // replaced whole
}

type apiKey struct {
	digest [sha256.Size]byte
	who    Principal
}

// LoadAPIKeys reads a file of lines "name:digest" or "name:digest:model,model", the digest being the key's SHA-256 in
// hexadecimal. Empty lines and lines that begin with # are passed over.
func LoadAPIKeys(path string) (*APIKeys, error) {
	k := &APIKeys{path: path}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Reload reads the file again. If it cannot be used, the set stays as it was.
func (k *APIKeys) Reload() error {
	f, err := os.Open(k.path)
	if err != nil {
		return fmt.Errorf("auth: API keys: %w", err)
	}
	defer f.Close()
	entries, err := parseAPIKeys(f)
	if err != nil {
		return fmt.Errorf("auth: API keys: %s:%w", k.path, err)
	}
	k.entries.Store(&entries)
	return nil
}

// parseAPIKeys reads the lines. Its errors begin with the line's number and never quote a digest or what may be a key.
func parseAPIKeys(r io.Reader) ([]apiKey, error) {
	var entries []apiKey
	seen := map[[sha256.Size]byte]bool{}
	lines := bufio.NewScanner(r)
	n := 0
	for lines.Scan() {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, ":", 3) // model names may have colons
		if len(fields) < 2 || fields[0] == "" {
			return nil, fmt.Errorf("%d: want name:sha256 or name:sha256:model,model", n)
		}
		digest, err := hex.DecodeString(fields[1])
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("%d: the second field is not a SHA-256 in hexadecimal", n)
		}
		e := apiKey{digest: [sha256.Size]byte(digest), who: Principal{Subject: fields[0]}}
		if seen[e.digest] {
			return nil, fmt.Errorf("%d: this digest occurs twice", n)
		}
		seen[e.digest] = true
		if len(fields) == 3 {
			for model := range strings.SplitSeq(fields[2], ",") {
				if model = strings.TrimSpace(model); model == "" {
					return nil, fmt.Errorf("%d: the list of models has an empty name", n) // an empty list would permit all
				}
				e.who.Models = append(e.who.Models, model)
			}
		}
		if entries = append(entries, e); len(entries) > maxAPIKeys {
			return nil, fmt.Errorf("%d: more than %d keys", n, maxAPIKeys)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%d: %w", n+1, err)
	}
	if len(entries) == 0 {
		return nil, errors.New("1: no keys")
	}
	return entries, nil
}

// find looks at every entry, whatever it has found, so that the time taken tells nothing.
func (k *APIKeys) find(digest [sha256.Size]byte) (Principal, bool) {
	entries := *k.entries.Load()
	at := -1
	for i := range entries {
		if subtle.ConstantTimeCompare(entries[i].digest[:], digest[:]) == 1 {
			at = i
		}
	}
	if at < 0 {
		return Principal{}, false
	}
	return entries[at].who, true
}

// AppendAPIKey makes a new key, appends its digest to the file, which is made if need be, and returns the key: it is
// kept nowhere else.
func AppendAPIKey(path, name string, models []string) (string, error) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	key := apiKeyPrefix + base64.RawURLEncoding.EncodeToString(secret)
	digest := sha256.Sum256([]byte(key))
	line := name + ":" + hex.EncodeToString(digest[:])
	if len(models) > 0 {
		line += ":" + strings.Join(models, ",")
	}
	got, err := parseAPIKeys(strings.NewReader(line))
	if err != nil || len(got) != 1 || got[0].who.Subject != name || len(got[0].who.Models) != len(models) || strings.ContainsAny(line, "\r\n") || name != strings.TrimSpace(name) {
		return "", fmt.Errorf("auth: API keys: name %q and models %q must not be empty nor have ':', ',', '#' or spaces about them", name, models)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("auth: API keys: %w", err)
	}
	_, err = f.WriteString(line + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("auth: API keys: %w", err)
	}
	return key, nil
}
