package keys_test

import (
	"strings"
	"testing"
	"time"

	"pdrouter/auth/keys"
)

func TestJWKSConfig(t *testing.T) {
	good := keys.JWKSConfig{URL: "https://issuer.example/keys"}
	for _, url := range []string{good.URL, "http://127.0.0.1:8080/keys", "http://[::1]/keys", "http://localhost/keys", "/etc/jwks.json", "jwks.json"} {
		if err := (keys.JWKSConfig{URL: url}).Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for name, change := range map[string]func(*keys.JWKSConfig){
		"no url":              func(c *keys.JWKSConfig) { c.URL = "" },
		"http":                func(c *keys.JWKSConfig) { c.URL = "http://issuer.example/keys" },
		"http, private":       func(c *keys.JWKSConfig) { c.URL = "http://10.0.0.1/keys" },
		"http, looks local":   func(c *keys.JWKSConfig) { c.URL = "http://localhost.example/keys" },
		"ftp":                 func(c *keys.JWKSConfig) { c.URL = "ftp://127.0.0.1/keys" },
		"password":            func(c *keys.JWKSConfig) { c.URL = "https://a:hunter2@issuer.example/keys" },
		"broken password":     func(c *keys.JWKSConfig) { c.URL = "https://a:hunter2%@issuer.example/keys" },
		"no host":             func(c *keys.JWKSConfig) { c.URL = "https:///keys" },
		"fragment":            func(c *keys.JWKSConfig) { c.URL += "#x" },
		"refresh":             func(c *keys.JWKSConfig) { c.Refresh = -1 },
		"long refresh":        func(c *keys.JWKSConfig) { c.Refresh, c.MaxStale = 48*time.Hour, 72*time.Hour },
		"min_interval":        func(c *keys.JWKSConfig) { c.MinInterval = time.Millisecond },
		"long min_interval":   func(c *keys.JWKSConfig) { c.MinInterval = time.Hour },
		"max_stale":           func(c *keys.JWKSConfig) { c.MaxStale = time.Minute },
		"long max_stale":      func(c *keys.JWKSConfig) { c.MaxStale = 1000 * time.Hour },
		"timeout":             func(c *keys.JWKSConfig) { c.Timeout = -1 },
		"file with authority": func(c *keys.JWKSConfig) { c.URL, c.CAFile = "/jwks.json", "/ca.pem" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has the password: %v", name, err)
		}
	}
}
