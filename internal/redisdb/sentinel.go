package redisdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// sentinels connects to the master that the Sentinels name at that moment.
type sentinels struct {
	dialer
	last *atomic.Pointer[string] // the address that most Sentinels named last
}

// dial asks all Sentinels and connects to the master that most of them name. What the driver calls the address is only
// the master's name.
func (s sentinels) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	address, err := s.master(ctx)
	if err != nil {
		return nil, fmt.Errorf("redis: sentinel: master %s: %w", s.cfg.Sentinel.Master, err)
	}
	return s.dialer.dial(ctx, "tcp", address)
}

// master returns the address that more than half of all Sentinels agree on, as soon as it is known. Where there is none, as
// when they cannot be reached or do not agree, it returns the one that they agreed on last: fewer move nobody.
func (s sentinels) master(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Dial)
	defer cancel()
	type answer struct {
		master string
		err    error
	}
	all := s.cfg.Sentinel.Addresses
	answers := make(chan answer, len(all)) // so that whoever is late does not wait
	for _, address := range all {
		go func() {
			master, err := s.ask(ctx, address)
			answers <- answer{master, err}
		}()
	}
	votes := map[string]int{}
	var errs []error
	for range all {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		if votes[a.master]++; 2*votes[a.master] > len(all) {
			s.last.Store(&a.master)
			return a.master, nil
		}
	}
	if last := s.last.Load(); last != nil {
		return *last, nil
	}
	if len(votes) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d name one at most: %v", slices.Max(slices.Collect(maps.Values(votes))), len(all), slices.Sorted(maps.Keys(votes))))
	}
	return "", errors.Join(errs...)
}

// isMaster returns an error if the server that a connection leads to is not a master: one that was, or is about to be. HELLO
// tells, and is allowed to every user.
func isMaster(ctx context.Context, conn *redis.Conn) error {
	cmd := redis.NewMapStringInterfaceCmd(ctx, "hello")
	if err := conn.Process(ctx, cmd); err != nil {
		return fmt.Errorf("redis: sentinel: %w", err)
	}
	if role := cmd.Val()["role"]; role != "master" {
		return fmt.Errorf("redis: sentinel: the server is %v; want master", role)
	}
	return nil
}

// ask asks one Sentinel.
func (s sentinels) ask(ctx context.Context, address string) (string, error) {
	c := redis.NewSentinelClient(&redis.Options{
		Addr: address, CredentialsProviderContext: s.cfg.Sentinel.login().provider(), DisableIdentity: true,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.secure(ctx, network, address, s.cfg.Sentinel.ServerName)
		},
		DialTimeout: s.cfg.Dial, ReadTimeout: s.cfg.Timeout, WriteTimeout: s.cfg.Timeout,
		DialerRetries: 1, MaxRetries: -1, PoolSize: 1, PipelinePoolSize: -1, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer c.Close()
	got, err := c.GetMasterAddrByName(ctx, s.cfg.Sentinel.Master).Result()
	if err == nil && len(got) != 2 {
		err = fmt.Errorf("answered %d words; want host and port", len(got))
	}
	if errors.Is(err, redis.Nil) {
		err = errors.New("does not know it")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	return net.JoinHostPort(got[0], got[1]), nil
}
