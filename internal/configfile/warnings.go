package configfile

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// where is an engine of the configuration.
type where struct{ model, engine string }

// normalURL writes URLs of one server alike.
func normalURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// engineWarnings are what is allowed of engines and seldom intended.
func (l *Loaded) engineWarnings() []string {
	var all []string
	control := false
	first := map[string]where{}
	for _, m := range l.Models {
		for _, list := range EngineLists(&m) {
			for _, e := range *list.Engines {
				control = control || e.Control != ""
				if m.ForwardAuthorization && strings.HasPrefix(e.URL, "http:") {
					all = append(all, fmt.Sprintf("model %s: clients' credentials are sent to %s without TLS: forward_authorization is set, and its url is http", m.Name, e.Name))
				}
				was, again := first[normalURL(e.URL)]
				if !again {
					first[normalURL(e.URL)] = where{m.Name, e.Name}
					continue
				}
				both := fmt.Sprintf("%s and %s of model %s", was.engine, e.Name, m.Name)
				if was.model != m.Name {
					both = fmt.Sprintf("%s of model %s and %s of model %s", was.engine, was.model, e.Name, m.Name)
				}
				all = append(all, fmt.Sprintf("%s have one url, %s: its requests, failures and KV are counted twice, each time in part", both, e.URL))
			}
		}
	}
	if control && l.Auth.ControlTokenFile == "" {
		all = append(all, "engines' control routes are asked without a token, which those that are started with --control-keys refuse: auth.control_token_file is missing")
	}
	return all
}

// trustedWarnings are the private keys among those that records are checked with. There are none where a file cannot be read.
func (l *Loaded) trustedWarnings() []string {
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
			if key, err := keys.Load(file); err == nil && key.Signs() {
				all = append(all, fmt.Sprintf("auth.records.trusted has a private key, %s: name its public part, so that the other can stay with whoever signs", file))
			}
		}
	}
	return all
}

// emptyKeysWarnings tell of a file of API keys that has none.
func (l *Loaded) emptyKeysWarnings() []string {
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
