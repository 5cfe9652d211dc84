// Package redisdb opens connections to the Redis that gateways share: the engines' metadata and the clients' limits
// lie there. It owns the address, the credentials and the time-outs, and nothing of what is stored.
package redisdb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config says where Redis is and how to speak to it. Secrets are in files that are read at each connection.
type Config struct {
	Address      string        `yaml:"address"`       // host:port, or unix:///path
	Username     string        `yaml:"username"`      // "" is Redis's default user
	PasswordFile string        `yaml:"password_file"` // "" is no password
	DB           int           `yaml:"db"`            // database number
	Prefix       string        `yaml:"prefix"`        // of every key and channel; default "pdrouter"
	TLS          bool          `yaml:"tls"`
	CAFile       string        `yaml:"ca_file"`     // PEM; "" is the system's authorities
	ServerName   string        `yaml:"server_name"` // in the certificate; "" is the address's host
	CertFile     string        `yaml:"cert_file"`   // PEM, this client's; "" is none
	CertKeyFile  string        `yaml:"cert_key_file"`
	Dial         time.Duration `yaml:"dial"`    // time for one connection; default 1s
	Timeout      time.Duration `yaml:"timeout"` // time for one read or write; default 1s
	Pool         int           `yaml:"pool"`    // connections at most; default 8
}

// WithDefaults returns the configuration with every default filled in.
func (c Config) WithDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "pdrouter"
	}
	if c.Dial == 0 {
		c.Dial = time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.Pool == 0 {
		c.Pool = 8
	}
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if path, unix := strings.CutPrefix(c.Address, "unix://"); c.Address == "" || unix && !strings.HasPrefix(path, "/") || !unix && !strings.Contains(c.Address, ":") {
		bad("address is %q; want host:port or unix:///path", c.Address)
	}
	if strings.ContainsAny(c.Prefix, "{} ") {
		bad("prefix is %q; want no braces and no spaces", c.Prefix)
	}
	if c.DB < 0 || c.Pool < 0 {
		bad("db is %d and pool is %d; want at least 0", c.DB, c.Pool)
	}
	if c.Dial < 0 || c.Timeout < 0 {
		bad("dial is %v and timeout is %v; want more than 0", c.Dial, c.Timeout)
	}
	if !c.TLS && (c.CAFile != "" || c.ServerName != "" || c.CertFile != "") {
		bad("ca_file, server_name and cert_file need tls")
	}
	if (c.CertFile == "") != (c.CertKeyFile == "") {
		bad("cert_file is %q and cert_key_file is %q; want both or none", c.CertFile, c.CertKeyFile)
	}
	return errors.Join(errs...)
}

// Client is a connection to Redis that several parts may share.
type Client = redis.UniversalClient

// Open returns a client of the Redis that cfg names. It does not connect: a server that is down shows at the first call.
// Several parts may share the client; whoever opened it closes it.
func Open(cfg Config, log *slog.Logger) (Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	cfg = cfg.WithDefaults()
	opts := &redis.Options{
		Network: "tcp", Addr: cfg.Address, DB: cfg.DB, PoolSize: cfg.Pool, ClientName: "pdrouter",
		DialTimeout: cfg.Dial, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout + cfg.Dial,
		MaxRetries: 1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if path, ok := strings.CutPrefix(cfg.Address, "unix://"); ok {
		opts.Network, opts.Addr = "unix", path
	}
	if cfg.PasswordFile != "" {
		opts.CredentialsProviderContext = func(context.Context) (string, string, error) {
			b, err := os.ReadFile(cfg.PasswordFile)
			return cfg.Username, strings.TrimSpace(string(b)), err
		}
		if _, _, err := opts.CredentialsProviderContext(context.Background()); err != nil {
			return nil, fmt.Errorf("redis: password_file: %w", err)
		}
	}
	if cfg.TLS {
		var err error
		if opts.TLSConfig, err = tlsConfig(cfg); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	redis.SetLogger(driverLog{log}) // the driver has one for the process, and would write to the standard error
	return redis.NewClient(opts), nil
}

// driverLog takes in what the driver logs. Every failure is also returned, and logged where it is handled.
type driverLog struct{ log *slog.Logger }

// Printf implements the driver's logger.
func (l driverLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis: driver", "text", fmt.Sprintf(format, args...))
	}
}

func tlsConfig(cfg Config) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if t.ServerName == "" {
		t.ServerName, _, _ = strings.Cut(cfg.Address, ":")
	}
	if cfg.CAFile != "" {
		b, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("ca_file: %s has no certificate", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.CertKeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}
