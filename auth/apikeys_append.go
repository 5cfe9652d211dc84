package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pdrouter/auth/internal/files"
)

// AppendAPIKey makes a new key, appends its digest to the file, which is made if need be, and returns the key: it is
// kept nowhere else. Of the limits, those that are 0 are left out. Nil models mean all; scopes may be
// PriorityScope.
//
// The file is replaced whole and keeps its mode and owner, so that whoever reads it sees every line or none. It does not
// add to a file whose last line has no end: that may be half of one, and would be joined or be taken for whole.
func AppendAPIKey(path, name string, models []string, limits Limits, scopes ...string) (string, error) {
	key, err := appendAPIKey(path, name, models, limits, scopes)
	if err != nil {
		return "", fmt.Errorf("auth: API keys: %w", err)
	}
	return key, nil
}

func appendAPIKey(path, name string, models []string, limits Limits, scopes []string) (string, error) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	key := apiKeyPrefix + base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(key))
	line, err := apiKeyLine(sum, name, models, limits, scopes)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link is not replaced
	}
	unlock, err := files.LockDir(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer unlock()
	old, _, err := files.ReadBounded(path, maxAPIKeysFile-int64(len(line)))
	if errors.Is(err, fs.ErrNotExist) {
		return key, files.Write(path, []byte(line), 0o600, nil)
	}
	if err != nil {
		return "", err
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		return "", fmt.Errorf("%s: the last line has no end, and may be half of one; end it if it is whole, else remove it", path)
	}
	text := string(old) + line
	if entries, _ := parseAPIKeys(text); entries[sum].Subject != name {
		return "", fmt.Errorf("%s has %d keys already", path, maxAPIKeys)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return key, files.Write(path, []byte(text), info.Mode().Perm(), info)
}

// apiKeyLine returns the line of a key, if it means what was asked for.
func apiKeyLine(sum digest, name string, models []string, limits Limits, scopes []string) (string, error) {
	if err := limits.Validate(); err != nil {
		return "", err
	}
	if models != nil && len(models) == 0 {
		return "", errors.New("the list of models is empty; leave it out for all")
	}
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
	for _, scope := range scopes {
		if scope != PriorityScope {
			return "", fmt.Errorf("scope %q is unknown; want %s", scope, PriorityScope)
		}
		line += " " + optionScope + "=" + scope
	}
	got, errs := parseAPIKeys(line + "\n")
	who := got[sum]
	if len(errs) > 0 || who.Subject != name || !slices.Equal(who.Models, models) || !slices.Equal(who.Scopes, scopes) || who.Limits != limits || strings.ContainsAny(line, "\r\n") || name != strings.TrimSpace(name) {
		return "", fmt.Errorf("name %q and models %q must not be empty nor have ':', ',', '|', '#' or spaces about them", name, models)
	}
	return line + "\n", nil
}
