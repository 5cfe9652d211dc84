package configfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/configfile"
)

// TestRedisConfigs: each way to reach Redis can be written down, and is named by check.
func TestRedisConfigs(t *testing.T) {
	for want, redis := range map[string]string{
		"redis at redis.example:6379": `
    address: redis.example:6379
    username: pdrouter
    password_file: /etc/pdrouter/redis/password
    tls: true
    ca_file: /etc/pdrouter/redis/ca.pem
    cert_file: /etc/pdrouter/redis/client.pem
    cert_key_file: /etc/pdrouter/redis/client-key.pem`,
		"redis master pdrouter of the Sentinels at sentinel-0:26379, sentinel-1:26379": `
    sentinel:
      master: pdrouter
      addresses: [sentinel-0:26379, sentinel-1:26379]
      password_file: sentinel-password
    username_file: username
    password_file: password`,
		"redis cluster at node-0:6379, node-1:6379": `
    cluster: [node-0:6379, node-1:6379]
    username: pdrouter
    password_file: password
    dial: 2s
    dial_tries: 3
    dial_backoff: 100ms`,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "config.yaml")
		text := "models: [{name: m, engines: [{name: e, url: \"http://e:1\"}]}]\nmetadata:\n  store: redis\n  redis:" + redis + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := configfile.Load(path)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if got := l.WhereRecords(); !strings.HasPrefix(got, want) {
			t.Errorf("got %q; want %q", got, want)
		}
		for _, file := range []string{l.Metadata.Redis.PasswordFile, l.Metadata.Redis.UsernameFile, l.Metadata.Redis.Sentinel.PasswordFile} {
			if file != "" && !filepath.IsAbs(file) {
				t.Errorf("%s: file %q is not made absolute", want, file)
			}
		}
	}
}
