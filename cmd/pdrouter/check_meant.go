package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"pdrouter/auth"
)

// engineWarnings are what is allowed of engines and seldom meant.
func (l *loaded) engineWarnings() []string {
	var all []string
	control := false
	for _, m := range l.Models {
		at := map[string]string{}
		for _, e := range m.Prefill {
			at[e.URL] = e.Name
			control = control || e.Control != ""
		}
		for _, e := range m.Decode {
			if prefill, both := at[e.URL]; both {
				all = append(all, fmt.Sprintf("model %s: %s and %s have one url, %s: is one of them a copy of the other's line?", m.Name, prefill, e.Name, e.URL))
			}
			control = control || e.Control != ""
		}
	}
	if control && l.Auth.ControlTokenFile == "" {
		all = append(all, "engines' control routes are asked without a token, which those that are started with --control-keys refuse: auth.control_token_file is missing")
	}
	return all
}

// trustedWarnings are the private keys among those that records are checked with. There are none where a file cannot be read.
func (l *loaded) trustedWarnings() []string {
	var all []string
	for _, path := range l.Auth.Records.Trusted {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files = nil
			for _, pattern := range []string{"*.jwk", "*.pem"} {
				found, _ := filepath.Glob(filepath.Join(path, pattern)) // the pattern is sound, but for a strange folder's name
				files = append(files, found...)
			}
		}
		for _, file := range files {
			if key, err := auth.LoadKey(file); err == nil && key.Signs() {
				all = append(all, fmt.Sprintf("auth.records.trusted has a private key, %s: name its public part, so that the other can stay with whoever signs", file))
			}
		}
	}
	return all
}

// keylessWarnings tell of a file of API keys that has none.
func (l *loaded) keylessWarnings() []string {
	if l.Auth.Clients.APIKeysFile == "" {
		return nil
	}
	if keys, err := auth.LoadAPIKeys(l.Auth.Clients.APIKeysFile); err != nil || keys.Len() > 0 {
		return nil
	}
	return []string{"auth.clients.api_keys_file has no keys: whoever shows one is refused"}
}

// looksLikePolicy reports whether a file that is no configuration is a policy.
func looksLikePolicy(path string) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var top map[string]any
	if yaml.Unmarshal(b, &top) != nil {
		return false
	}
	for key := range top {
		if key != "rules" && key != "default" {
			return false
		}
	}
	return len(top) > 0
}
