package auth

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	apiKeyPrefix = "pdr_"
	maxAPIKeys   = 10_000
)

// APIKeys is a set of clients' keys of which only digests are kept. It is safe for concurrent use.
//
// One round of SHA-256 is enough: a key is 256 random bits, which nobody finds by trying, so there is nothing that a slow
// digest or a salt would protect.
type APIKeys struct {
	path string
	// entries are found by their digest. How long that takes may depend on the digests, but what a caller chooses is a key,
	// whose digest is as good as random to him, and a digest that was learned bit by bit would still not say the key.
	entries atomic.Pointer[map[digest]Principal] // replaced whole
}

type digest = [sha256.Size]byte

// apiKey is one line of the file.
type apiKey struct {
	digest digest
	who    Principal
}

// LoadAPIKeys reads a file of lines
//
//	name:digest[:model,model] [requests_per_minute=N] [tokens_per_minute=N] [concurrent=N]
//
// the digest being the key's SHA-256 in hexadecimal. Lines of one name are keys of one tenant, which are counted together.
// Empty lines and lines that begin with # are passed over.
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
func parseAPIKeys(r io.Reader) (map[digest]Principal, error) {
	entries := map[digest]Principal{}
	lines := bufio.NewScanner(r)
	n := 0
	for lines.Scan() {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, err := parseAPIKey(line)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		if _, ok := entries[e.digest]; ok {
			return nil, fmt.Errorf("%d: this digest occurs twice", n)
		}
		if entries[e.digest] = e.who; len(entries) > maxAPIKeys {
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

// parseAPIKey reads one line.
func parseAPIKey(line string) (apiKey, error) {
	fields := strings.SplitN(line, ":", 3) // model names may have colons
	if len(fields) < 2 || fields[0] == "" {
		return apiKey{}, errors.New("want name:sha256 or name:sha256:model,model, and limits behind it")
	}
	last := &fields[len(fields)-1]
	rest, options := cutOptions(*last)
	*last = rest
	sum, err := hex.DecodeString(fields[1])
	if err != nil || len(sum) != sha256.Size {
		return apiKey{}, errors.New("the second field is not a SHA-256 in hexadecimal")
	}
	e := apiKey{digest: digest(sum), who: Principal{Subject: fields[0], Tenant: fields[0]}}
	if e.who.Limits, err = parseLimits(options); err != nil {
		return apiKey{}, err
	}
	if len(fields) == 3 {
		for model := range strings.SplitSeq(fields[2], ",") {
			if model = strings.TrimSpace(model); model == "" {
				return apiKey{}, errors.New("the list of models has an empty name") // an empty list would permit all
			}
			e.who.Models = append(e.who.Models, model)
		}
	}
	return e, nil
}

// cutOptions takes the words with "=" off the end of a line. The first word behind a comma, or behind the digest, is none.
func cutOptions(s string) (rest string, options []string) {
	from := strings.LastIndexByte(s, ',') + 1
	words := strings.Fields(s[from:])
	n := 1
	for n < len(words) && !strings.Contains(words[n], "=") {
		n++
	}
	if n >= len(words) {
		return s, nil
	}
	return s[:from] + strings.Join(words[:n], " "), words[n:]
}

// The options of a line, as the configuration spells them.
const (
	optionRequests   = "requests_per_minute"
	optionTokens     = "tokens_per_minute"
	optionConcurrent = "concurrent"
)

func parseLimits(options []string) (l Limits, err error) {
	seen := make([]string, 0, 3)
	for _, o := range options {
		name, text, _ := strings.Cut(o, "=")
		var at *int
		switch name {
		case optionRequests:
			at = &l.Requests
		case optionTokens:
			at = &l.Tokens
		case optionConcurrent:
			at = &l.Concurrent
		default: // it is not quoted: who knows what was pasted
			return Limits{}, fmt.Errorf("what stands behind the key is none of %s=N, %s=N and %s=N", optionRequests, optionTokens, optionConcurrent)
		}
		if slices.Contains(seen, name) {
			return Limits{}, fmt.Errorf("%s occurs twice", name)
		}
		seen = append(seen, name)
		if *at, err = strconv.Atoi(text); err != nil || *at < 1 {
			return Limits{}, fmt.Errorf("%s is not a whole number above 0", name)
		}
	}
	return l, nil
}

// find returns whose key has the digest.
func (k *APIKeys) find(d digest) (Principal, bool) {
	who, ok := (*k.entries.Load())[d]
	return who, ok
}

// AppendAPIKey makes a new key, appends its digest to the file, which is made if need be, and returns the key: it is
// kept nowhere else. Of the limits, those that are 0 are left out.
func AppendAPIKey(path, name string, models []string, limits Limits) (string, error) {
	if err := limits.Validate(); err != nil {
		return "", fmt.Errorf("auth: API keys: %w", err)
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	key := apiKeyPrefix + base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(key))
	line := name + ":" + hex.EncodeToString(sum[:])
	if len(models) > 0 {
		line += ":" + strings.Join(models, ",")
	}
	for _, o := range []struct {
		name string
		n    int
	}{{optionRequests, limits.Requests}, {optionTokens, limits.Tokens}, {optionConcurrent, limits.Concurrent}} {
		if o.n > 0 {
			line += " " + o.name + "=" + strconv.Itoa(o.n)
		}
	}
	got, err := parseAPIKeys(strings.NewReader(line))
	who := got[sum]
	if err != nil || who.Subject != name || !slices.Equal(who.Models, models) || who.Limits != limits || strings.ContainsAny(line, "\r\n") || name != strings.TrimSpace(name) {
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
