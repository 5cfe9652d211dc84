// Package redisdb opens connections to the Redis that gateways share: the engines' metadata and the clients' limits
// lie there. It owns the address, the credentials and the time-outs, and nothing of what is stored. One server, the
// master that Sentinels name, and a Redis Cluster look alike to whoever uses the client.
package redisdb

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client is a connection to Redis that several parts may share.
type Client = redis.UniversalClient

// sentinelLife is how long a connection is kept to a master that Sentinels named. A master that was cut off from its
// Sentinels may go on answering: nobody keeps talking to it for longer.
const sentinelLife = 10 * time.Second

// Open returns a client of the Redis that cfg names. It does not connect: a server that is down shows at the first call.
// A command may be sent twice if its answer is lost. Several parts may share the client; whoever opened it closes it.
func Open(cfg Config) (Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	cfg = cfg.WithDefaults()
	for _, login := range []login{cfg.login(), cfg.Sentinel.login()} {
		if _, _, err := login.read(context.Background()); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	d := dialer{cfg}
	if cfg.TLS {
		if _, err := d.config(""); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	opts := &redis.UniversalOptions{
		Addrs: []string{cfg.Address}, DB: cfg.DB, ClientName: "pdrouter", DisableIdentity: true,
		CredentialsProviderContext: cfg.login().provider(), Dialer: d.dial,
		DialTimeout: cfg.Dial, DialerRetries: cfg.DialTries, DialerRetryTimeout: cfg.DialBackoff,
		ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, ContextTimeoutEnabled: true,
		PoolSize: cfg.Pool, PoolTimeout: cfg.Timeout + cfg.Dial, PipelinePoolSize: -1, MaxRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch {
	case cfg.Cluster != nil:
		var client atomic.Pointer[redis.ClusterClient]
		opts.Addrs, opts.Dialer = cfg.Cluster, func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := d.dial(ctx, network, address)
			if c := client.Load(); err != nil && c != nil {
				c.ReloadState(ctx) // the node may have been replaced: the driver itself goes on asking for it
			}
			return conn, err
		}
		client.Store(redis.NewClusterClient(opts.Cluster()))
		return client.Load(), nil
	case cfg.Sentinel.Master != "":
		opts.Addrs, opts.Dialer = []string{cfg.Sentinel.Master}, sentinels{d, new(atomic.Pointer[string])}.dial
		opts.OnConnect = isMaster
		opts.DialTimeout, opts.ConnMaxLifetime = 2*cfg.Dial, sentinelLife // first the Sentinels are asked
	}
	return redis.NewClient(opts.Simple()), nil
}

// login says who this client is, in files that may change.
type login struct {
	user, userFile, passwordFile string
	section                      string // where the files are named
}

func (c Config) login() login { return login{c.Username, c.UsernameFile, c.PasswordFile, ""} }

func (s Sentinel) login() login { return login{s.Username, "", s.PasswordFile, "sentinel."} }

// provider returns what the driver asks at each connection; nil without a password.
func (l login) provider() func(context.Context) (string, string, error) {
	if l.passwordFile == "" {
		return nil
	}
	return l.read
}

// read returns the name and the password as the files have them now.
func (l login) read(context.Context) (user, password string, err error) {
	user = l.user
	if l.userFile != "" {
		if user, err = content(l.userFile); err != nil {
			return "", "", fmt.Errorf("%susername_file: %w", l.section, err)
		}
	}
	if l.passwordFile != "" {
		if password, err = content(l.passwordFile); err != nil {
			return "", "", fmt.Errorf("%spassword_file: %w", l.section, err)
		}
	}
	return user, password, nil
}

// content returns what a file holds, without the space around it.
func content(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// LogTo has log take in what the driver logs, which else goes to the standard error. The driver has one log for the whole
// process, so this is for whoever owns the process: call it once, before Open.
func LogTo(log *slog.Logger) { redis.SetLogger(driverLog{log}) }

// driverLog takes in what the driver logs. Every failure is also returned, and logged where it is handled.
type driverLog struct{ log *slog.Logger }

// Printf implements the driver's logger.
func (l driverLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis: driver", "text", fmt.Sprintf(format, args...))
	}
}
