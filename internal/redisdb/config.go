package redisdb

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"time"

	"pdrouter/internal/field"
)

// Config says where Redis is and how to speak to it: exactly one of Address, Sentinel and Cluster. Secrets and
// certificates are in files that are read again at each connection, so that they can be replaced without a restart.
//
// Replicas are never read from: a replica may lag behind its master, and what lags could bring back a record that has
// been replaced or withdrawn.
type Config struct {
	Address  string   `yaml:"address"`  // one server: host:port, or unix:///path
	Sentinel Sentinel `yaml:"sentinel"` // the master that Sentinels name
	Cluster  []string `yaml:"cluster"`  // host:port of some nodes of a Redis Cluster; the others are found through them

	Username     string `yaml:"username"`      // "" is Redis's default user
	UsernameFile string `yaml:"username_file"` // instead of username
	PasswordFile string `yaml:"password_file"` // "" is no password
	DB           int    `yaml:"db"`            // database number; a cluster has only 0
	Prefix       string `yaml:"prefix"`        // of every key and channel; default "pdrouter"

	TLS         bool   `yaml:"tls"`           // also to the Sentinels
	CAFile      string `yaml:"ca_file"`       // PEM; "" is the system's authorities
	ServerName  string `yaml:"server_name"`   // in the certificates; "" is the host that is connected to
	CertFile    string `yaml:"cert_file"`     // PEM, this client's; "" is none
	CertKeyFile string `yaml:"cert_key_file"` // PEM, its private key; required with cert_file

	Dial        time.Duration `yaml:"dial"`         // time for one connection; default 1s
	DialTries   int           `yaml:"dial_tries"`   // connections tried for one command; default 2
	DialBackoff time.Duration `yaml:"dial_backoff"` // pause between them; default 50ms
	Timeout     time.Duration `yaml:"timeout"`      // time for one read or write; default 1s
	Pool        int           `yaml:"pool"`         // connections to one server at most; default 8
}

// Sentinel names a master and who knows where it is.
type Sentinel struct {
	Master       string   `yaml:"master"`        // its name in the Sentinels' configuration
	Addresses    []string `yaml:"addresses"`     // host:port of the Sentinels, all of them: most of them decide
	Username     string   `yaml:"username"`      // at the Sentinels; "" is the default user
	PasswordFile string   `yaml:"password_file"` // at the Sentinels; "" is no password
	ServerName   string   `yaml:"server_name"`   // in the Sentinels' certificates; "" is that of metadata.redis
}

// IsZero says that nothing is set.
func (c Config) IsZero() bool { return reflect.ValueOf(c).IsZero() }

// WithDefaults returns the configuration with every default filled in.
func (c Config) WithDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "pdrouter"
	}
	if c.Dial == 0 {
		c.Dial = time.Second
	}
	if c.DialTries == 0 {
		c.DialTries = 2
	}
	if c.DialBackoff == 0 {
		c.DialBackoff = 50 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.Pool == 0 {
		c.Pool = 8
	}
	if c.Sentinel.ServerName == "" {
		c.Sentinel.ServerName = c.ServerName
	}
	return c
}

// At is where Redis is, without credentials: its address, or which master or cluster it is.
func (c Config) At() string {
	switch {
	case c.Sentinel.Master != "":
		return fmt.Sprintf("master %s of the Sentinels at %s", c.Sentinel.Master, strings.Join(c.Sentinel.Addresses, ", "))
	case len(c.Cluster) > 0:
		return "cluster at " + strings.Join(c.Cluster, ", ")
	}
	return c.Address
}

// Where says in a few words which Redis this is.
func (c Config) Where() string {
	if c.Address != "" {
		return "redis at " + c.Address
	}
	return "redis " + c.At()
}

// Validate reports every value that makes no sense, by its dotted key. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	bad := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }
	sentinel := !reflect.ValueOf(c.Sentinel).IsZero()
	switch modes := count(c.Address != "", sentinel, c.Cluster != nil); {
	case modes == 0:
		bad("address", "is empty; want host:port or unix:///path, or sentinel, or cluster")
	case modes > 1:
		bad("address", "or sentinel or cluster: %d of them are set; want one", modes)
	}
	if path, unix := strings.CutPrefix(c.Address, "unix://"); c.Address != "" && (unix && !strings.HasPrefix(path, "/") || !unix && !hostPort(c.Address)) {
		bad("address", "is %q; want host:port or unix:///path", c.Address)
	}
	if sentinel && c.Sentinel.Master == "" {
		bad("sentinel.master", "is empty; want the name that the Sentinels know")
	}
	if sentinel && len(c.Sentinel.Addresses) == 0 {
		bad("sentinel.addresses", "is empty; want host:port of every Sentinel")
	}
	if c.Cluster != nil && len(c.Cluster) == 0 {
		bad("cluster", "is empty; want host:port of some nodes")
	}
	for key, list := range map[string][]string{"sentinel.addresses": c.Sentinel.Addresses, "cluster": c.Cluster} {
		for i, a := range list {
			if !hostPort(a) {
				bad(fmt.Sprintf("%s[%d]", key, i), "is %q; want host:port", a)
			}
		}
	}
	if c.Username != "" && c.UsernameFile != "" {
		bad("username", "and username_file are both set; want one")
	}
	if (c.Username != "" || c.UsernameFile != "") && c.PasswordFile == "" {
		bad("password_file", "is empty; a user needs one")
	}
	if c.Sentinel.Username != "" && c.Sentinel.PasswordFile == "" {
		bad("sentinel.password_file", "is empty; a user needs one")
	}
	if strings.ContainsAny(c.Prefix, "{} ") {
		bad("prefix", "is %q; want no braces and no spaces", c.Prefix)
	}
	if c.DB < 0 || c.DB > 0 && c.Cluster != nil {
		bad("db", "is %d; want at least 0, and 0 in a cluster", c.DB)
	}
	return errors.Join(append(errs, c.bounds(), c.files())...)
}

func (c Config) bounds() error {
	var errs []error
	for _, f := range []struct {
		key string
		d   time.Duration
	}{{"dial", c.Dial}, {"dial_backoff", c.DialBackoff}, {"timeout", c.Timeout}} {
		if f.d < 0 {
			errs = append(errs, field.Errorf(f.key, "is %v; want more than 0", f.d))
		}
	}
	if c.Pool < 0 {
		errs = append(errs, field.Errorf("pool", "is %d; want more than 0", c.Pool))
	}
	if c.DialTries < 0 {
		errs = append(errs, field.Errorf("dial_tries", "is %d; want more than 0", c.DialTries))
	}
	return errors.Join(errs...)
}

// files reports what is said of TLS and cannot be meant.
func (c Config) files() error {
	var errs []error
	if !c.TLS && (c.CAFile != "" || c.ServerName != "" || c.CertFile != "" || c.Sentinel.ServerName != "") {
		errs = append(errs, field.Errorf("tls", "is false; ca_file, server_name and cert_file need it"))
	}
	if (c.CertFile == "") != (c.CertKeyFile == "") {
		errs = append(errs, field.Errorf("cert_file", "is %q and cert_key_file is %q; want both or none", c.CertFile, c.CertKeyFile))
	}
	return errors.Join(errs...)
}

func hostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != ""
}

func count(set ...bool) int {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}
