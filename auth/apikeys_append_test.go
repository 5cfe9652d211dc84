package auth

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pdrouter/auth/internal/keytest"
)

func TestAppendAPIKeyWritesLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	want := Limits{Requests: 60, Tokens: 100_000, Concurrent: 4}
	key, err := AppendAPIKey(path, "a", []string{"m"}, want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AppendAPIKey(path, "a", nil, Limits{Concurrent: -1}); err == nil {
		t.Error("a limit below zero was written")
	}
	if _, err := AppendAPIKey(path, "a", []string{"m concurrent=9"}, Limits{}); err == nil {
		t.Error("a model that would be read as a limit was written")
	}
	keys, err := LoadAPIKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := keys.find(sha256.Sum256([]byte(key))); !ok || p.Limits != want {
		t.Errorf("got %+v, %t; want %+v", p, ok, want)
	}
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte(key)) {
		t.Errorf("the file has the key itself (%v)", err)
	}
}

// A line without an end is neither joined with the next one nor ended by it.
func TestAppendAPIKeyBehindAnUnfinishedLine(t *testing.T) {
	for _, models := range [][]string{nil, {"m1"}} {
		path := filepath.Join(t.TempDir(), "keys")
		if _, err := AppendAPIKey(path, "alice", models, Limits{Concurrent: 4}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unfinished := string(b[:len(b)-1])
		keytest.Write(t, path, unfinished)
		if _, err := AppendAPIKey(path, "bob", []string{"m2"}, Limits{}); err == nil || !strings.Contains(err.Error(), "the last line has no end") {
			t.Errorf("models %v: got %v; want to be told of the line", models, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != unfinished {
			t.Errorf("models %v: the file was changed to %s (%v)", models, b, err)
		}
		keytest.Write(t, path, unfinished+"\n") // it is whole, says who knows
		if _, err := AppendAPIKey(path, "bob", []string{"m2"}, Limits{}); err != nil {
			t.Error(err)
		}
		keys, err := LoadAPIKeys(path)
		if err != nil || keys.Len() != 2 || !keys.Has("alice") || !keys.Has("bob") {
			t.Errorf("models %v: got %v, %v; want both", models, keys, err)
		}
	}
}

// The file is replaced by another, which has the old one's mode; a link to it stays one.
func TestAppendAPIKeyReplacesTheFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "keys"), filepath.Join(dir, "link")
	keytest.Write(t, path, "# ours\nbroken\n")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("keys", link); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path) // as a gateway has it that reads just now
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	key, err := AppendAPIKey(link, "alice", nil, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if old, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", reader.Fd())); err == nil && len(old) != len("# ours\nbroken\n") {
		t.Errorf("the file was changed under its reader to %s", old)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got mode %v, %v; want 0640", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "# ours\nbroken\nalice:") {
		t.Errorf("got %s, %v; want what was there and one line more", text, err)
	}
	if entries, _ := parseAPIKeys(string(text)); entries[sha256.Sum256([]byte(key))].Subject != "alice" {
		t.Errorf("the key is not in %s", text)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".pdrouter-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Whoever adds keys together loses none.
func TestAppendAPIKeyTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 5 {
				if _, err := AppendAPIKey(path, fmt.Sprint("n", i), nil, Limits{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if keys, err := LoadAPIKeys(path); err != nil || keys.Len() != 40 {
		t.Errorf("got %d keys, %v; want 40", keys.Len(), err)
	}
}
