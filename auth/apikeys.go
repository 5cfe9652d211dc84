package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"pdrouter/auth/internal/files"
)

const (
	apiKeyPrefix = "pdr_"
	maxAPIKeys   = 10_000

	maxAPIKeysFile = 16 << 20 // bytes
	shownErrors    = 10       // of one file
)

// IsAPIKey reports whether credentials look like a key that AppendAPIKey makes.
func IsAPIKey(credentials string) bool { return strings.HasPrefix(credentials, apiKeyPrefix) }

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
//	name:digest[:model,model] [requests_per_minute=N] [tokens_per_minute=N] [concurrent=N] [scope=priority]
//
// the digest being the key's SHA-256 in hexadecimal. Lines of one name are keys of one tenant, which are counted together.
// Empty lines and lines that begin with # are passed over; a file that has no others has no keys, and everybody is refused.
// A line that cannot be used is an error. So is one without a line's end: what is missing may be what it must not do.
func LoadAPIKeys(path string) (*APIKeys, error) {
	entries, err := readAPIKeys(path)
	if err != nil {
		return nil, err
	}
	k := &APIKeys{path: path}
	k.entries.Store(&entries)
	return k, nil
}

// Reload reads the file again. Keys that it does not have any more are gone, whatever else is in it: of a file with lines
// that cannot be used, the others hold, and the error names the lines. If there is no reading the file, the set stays as it
// was.
func (k *APIKeys) Reload() error {
	entries, err := readAPIKeys(k.path)
	if entries != nil {
		k.entries.Store(&entries)
	}
	return err
}

// Len returns how many keys hold.
func (k *APIKeys) Len() int { return len(*k.entries.Load()) }

// Has reports whether a key has this name.
func (k *APIKeys) Has(name string) bool {
	for _, who := range *k.entries.Load() {
		if who.Subject == name {
			return true
		}
	}
	return false
}

// readAPIKeys returns the keys of the sound lines of a file, and an error that names the others. They are nil if the file
// cannot be read.
func readAPIKeys(path string) (map[digest]Principal, error) {
	b, _, err := files.ReadBounded(path, maxAPIKeysFile)
	if err != nil {
		return nil, fmt.Errorf("auth: API keys: %w", err)
	}
	entries, errs := parseAPIKeys(string(b))
	if len(errs) > shownErrors {
		errs = append(errs[:shownErrors:shownErrors], fmt.Errorf("and %d lines more", len(errs)-shownErrors))
	}
	for i := range errs {
		errs[i] = fmt.Errorf("auth: API keys: %s:%w", path, errs[i])
	}
	return entries, errors.Join(errs...)
}

// parseAPIKeys returns the keys of the sound lines, and what is wrong with the others. Its errors begin with the line's
// number and never quote a digest or what may be a key.
func parseAPIKeys(text string) (entries map[digest]Principal, errs []error) {
	entries = map[digest]Principal{}
	doubled := map[digest]bool{} // which of its lines was meant is open: none holds
	n := 0
	for line := range strings.Lines(text) {
		n++
		bad := func(err error) { errs = append(errs, fmt.Errorf("%d: %w", n, err)) }
		body := strings.TrimSpace(line)
		if body == "" || strings.HasPrefix(body, "#") {
			continue
		}
		e, err := parseAPIKey(body)
		if err == nil && !strings.HasSuffix(line, "\n") {
			err = errors.New("the last line has no end, and may be half of one; end it if it is whole")
		}
		if err != nil {
			bad(err)
			continue
		}
		if _, ok := entries[e.digest]; ok || doubled[e.digest] {
			bad(errors.New("this digest occurs twice"))
			doubled[e.digest] = true
			delete(entries, e.digest)
			continue
		}
		if len(entries) == maxAPIKeys {
			bad(fmt.Errorf("more than %d keys", maxAPIKeys))
			break
		}
		entries[e.digest] = e.who
	}
	return entries, errs
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
	if strings.Contains(fields[0], "|") {
		return apiKey{}, errors.New("the name has a |, which only the tenants of tokens have")
	}
	sum, err := hex.DecodeString(fields[1])
	if err != nil || len(sum) != sha256.Size {
		return apiKey{}, errors.New("the second field is not a SHA-256 in hexadecimal")
	}
	e := apiKey{digest: digest(sum), who: Principal{Subject: fields[0], Tenant: fields[0]}}
	if err := parseOptions(options, &e.who); err != nil {
		return apiKey{}, err
	}
	if len(fields) == 3 {
		for model := range strings.SplitSeq(fields[2], ",") {
			if model = strings.TrimSpace(model); model == "" {
				return apiKey{}, errors.New("the list of models has an empty name") // an empty list would permit all
			}
			if strings.Contains(model, " "+optionScope+"=") {
				return apiKey{}, errors.New("the list of models has a scope in it: options stand behind the last model, with spaces between")
			}
			if hasDigest(model) {
				return apiKey{}, errors.New("the list of models has a digest: these are two lines in one")
			}
			e.who.Models = append(e.who.Models, model)
		}
	}
	return e, nil
}

// hasDigest reports whether what stands between two colons is a digest.
func hasDigest(model string) bool {
	for part := range strings.SplitSeq(model, ":") {
		if _, err := hex.DecodeString(part); err == nil && len(part) == 2*sha256.Size {
			return true
		}
	}
	return false
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
	optionScope      = "scope" // as in tokens
)

// parseOptions enters what stands behind a key.
func parseOptions(options []string, who *Principal) (err error) {
	seen := make([]string, 0, 4)
	l := &who.Limits
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
		case optionScope:
		default: // it is not quoted: who knows what was pasted
			return fmt.Errorf("what stands behind the key is none of %s=N, %s=N, %s=N and %s=%s", optionRequests, optionTokens, optionConcurrent, optionScope, PriorityScope)
		}
		if slices.Contains(seen, name) {
			return fmt.Errorf("%s occurs twice", name)
		}
		seen = append(seen, name)
		if name == optionScope {
			if text != PriorityScope { // a word that gives nothing may have been meant to
				return fmt.Errorf("%s is unknown; want %s", optionScope, PriorityScope)
			}
			who.Scopes = []string{text}
			continue
		}
		if *at, err = strconv.Atoi(text); err != nil || *at < 1 {
			return fmt.Errorf("%s is not a whole number above 0", name)
		}
	}
	return nil
}

// find returns whose key has the digest.
func (k *APIKeys) find(d digest) (Principal, bool) {
	who, ok := (*k.entries.Load())[d]
	return who, ok
}
