package redisdb

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/redistest"
)

func TestRedisCredentials(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "secret")
	for _, c := range []struct {
		password string
		ok       bool
	}{{"secret\n", true}, {"other", false}} {
		file := writeTemp(t, c.password)
		s, err := Open(Config{Address: server.Address(), Username: "default", PasswordFile: file})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(context.Background()).Err(); (err == nil) != c.ok {
			t.Errorf("password %q: got %v; want accepted: %t", c.password, err, c.ok)
		}
		s.Close()
	}
}

// A password that is replaced on the server and in the file is used from the next connection on.
func TestRedisCredentialsRotate(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "old")
	user, password := writeTemp(t, "default\n"), writeTemp(t, "old\n")
	s, err := Open(Config{Address: server.Address(), UsernameFile: user, PasswordFile: password, Pool: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Do("-a", "old", "--no-auth-warning", "ACL", "SETUSER", "default", "resetpass", ">new")
	server.Do("-a", "new", "--no-auth-warning", "CLIENT", "KILL", "TYPE", "normal")
	if err := s.Ping(t.Context()).Err(); err == nil {
		t.Error("the old password is still good")
	}
	if err := os.WriteFile(password, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()).Err(); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

func TestRedisTLS(t *testing.T) {
	certs, others := redistest.NewCerts(t), redistest.NewCerts(t)
	server := redistest.StartTLS(t, certs)
	good := Config{Address: server.Address(), TLS: true, CAFile: certs.CA, CertFile: certs.ClientCert, CertKeyFile: certs.ClientKey}
	for name, c := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"by address":          {func(*Config) {}, true},
		"by name":             {func(c *Config) { c.ServerName = "redis" }, true},
		"other name":          {func(c *Config) { c.ServerName = "other" }, false},
		"no certificate":      {func(c *Config) { c.CertFile, c.CertKeyFile = "", "" }, false},
		"other authority":     {func(c *Config) { c.CAFile = others.CA }, false},
		"foreign certificate": {func(c *Config) { c.CertFile, c.CertKeyFile = others.ClientCert, others.ClientKey }, false},
		"without TLS":         {func(c *Config) { *c = Config{Address: c.Address} }, false},
	} {
		cfg := good
		c.change(&cfg)
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(t.Context()).Err(); (err == nil) != c.ok {
			t.Errorf("%s: got %v; want accepted: %t", name, err, c.ok)
		}
		s.Close()
	}
}

// A write goes to whoever is the master, also after the master was killed.
func TestSentinelFollowsTheMaster(t *testing.T) {
	sentinels := redistest.StartSentinel(t)
	s, err := Open(Config{Sentinel: Sentinel{Master: redistest.MasterName, Addresses: sentinels.Addresses()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(t.Context(), "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := sentinels.Master()
	old.Kill()
	now := sentinels.Replaced(old)
	for err := s.Set(t.Context(), "a", "2", 0).Err(); err != nil; err = s.Set(t.Context(), "a", "2", 0).Err() {
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	if got := now.Do("GET", "a"); got != "2" {
		t.Errorf("the new master holds %q; want 2", got)
	}
	other, err := Open(Config{Sentinel: Sentinel{Master: "other", Addresses: sentinels.Addresses()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "does not know it") {
		t.Errorf("a master that nobody knows: got %v", err)
	}
}

func TestClusterServesEverySlot(t *testing.T) {
	s, err := Open(Config{Cluster: redistest.StartCluster(t, 0).Addresses()[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, key := range []string{"a", "b", "c", "d"} {
		if err := s.Set(t.Context(), key, key, 0).Err(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	sentinel := Sentinel{Master: "m", Addresses: []string{"s:1"}}
	for want, cfg := range map[string]Config{
		"address is empty":                  {},
		"address is \"redis\"":              {Address: "redis"},
		"address is \"unix://s\"":           {Address: "unix://s"},
		"2 of them are set":                 {Address: "redis:1", Sentinel: sentinel},
		"address or sentinel or cluster: 2": {Sentinel: sentinel, Cluster: []string{"redis:1"}},
		"sentinel.master is empty":          {Sentinel: Sentinel{Addresses: []string{"s:1"}}},
		"sentinel.addresses is empty":       {Sentinel: Sentinel{Master: "m"}},
		"sentinel.addresses[1] is \"s\"":    {Sentinel: Sentinel{Master: "m", Addresses: []string{"s:1", "s"}}},
		"sentinel.password_file is empty":   {Sentinel: Sentinel{Master: "m", Addresses: []string{"s:1"}, Username: "u"}},
		"sentinel.password_file: open":      {Sentinel: Sentinel{Master: "m", Addresses: []string{"s:1"}, PasswordFile: "/nonexistent"}},
		"cluster is empty":                  {Cluster: []string{}},
		"cluster[0] is \"a\"":               {Cluster: []string{"a"}},
		"db is 1":                           {Cluster: []string{"a:1"}, DB: 1},
		"prefix is \"{x}\"":                 {Address: "redis:1", Prefix: "{x}"},
		"timeout is -1ns":                   {Address: "redis:1", Timeout: -1},
		"dial_tries is -1":                  {Address: "redis:1", DialTries: -1},
		"tls is false":                      {Address: "redis:1", CAFile: "x"},
		"want both or none":                 {Address: "redis:1", TLS: true, CertFile: "x"},
		"username and username_file":        {Address: "redis:1", Username: "x", UsernameFile: "y", PasswordFile: "z"},
		"password_file is empty":            {Address: "redis:1", Username: "x"},
		"redis: password_file: open":        {Address: "redis:1", PasswordFile: "/nonexistent"},
		"ca_file: open":                     {Address: "redis:1", TLS: true, CAFile: "/nonexistent"},
	} {
		s, err := Open(cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: accepted", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %s", err, want)
		}
	}
}

func writeTemp(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
