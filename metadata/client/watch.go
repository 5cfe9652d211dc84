package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
)

// WatchConfig says how a Client watches, and how a Directory keeps its local copy.
type WatchConfig struct {
	Silence time.Duration `yaml:"silence"` // a stream that says nothing for so long is dead, and opened again; default 30s, two keep-alives of a gateway
	Retry   time.Duration `yaml:"retry"`   // first pause before the stream is opened again, doubled each time; default 50ms
	Longest time.Duration `yaml:"longest"` // longest of these pauses; default 5s. Each is shortened by up to a half at random
	Ahead   int           `yaml:"ahead"`   // Directory: peers whose records are fetched in advance at once; default 4
	Spread  time.Duration `yaml:"spread"`  // Directory: each of these fetches waits up to so long, at random, and the list after a sync up to a tenth of it per engine that is known, 5s at most; default 20ms
	Engines int           `yaml:"engines"` // Directory: engines whose records are kept; default 4096. Others are asked for each time
}

func (c WatchConfig) withDefaults() WatchConfig {
	c.Silence = cmp.Or(c.Silence, 30*time.Second)
	c.Retry = cmp.Or(c.Retry, 50*time.Millisecond)
	c.Longest = cmp.Or(c.Longest, 5*time.Second)
	c.Spread = cmp.Or(c.Spread, 20*time.Millisecond)
	c.Ahead = cmp.Or(c.Ahead, 4)
	c.Engines = cmp.Or(c.Engines, 4096)
	return c
}

func (c WatchConfig) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"silence", c.Silence}, {"retry", c.Retry}, {"longest", c.Longest}, {"spread", c.Spread}} {
		if f.d < 0 {
			errs = append(errs, fmt.Errorf("watch.%s is %v; want at least 0", f.name, f.d))
		}
	}
	if c.Ahead < 0 || c.Engines < 0 {
		errs = append(errs, fmt.Errorf("watch.ahead and watch.engines are %d and %d; want at least 0", c.Ahead, c.Engines))
	}
	return errors.Join(errs...)
}

// watch follows what changes about the engines that the client may read, until ctx ends, and returns ctx's error. It opens
// streams one after the other; lost is told why each has ended. told hears an event without a kind for everything else that
// comes; it must not block for long.
func (c *Client) watch(ctx context.Context, told func(metadata.WatchEvent), lost func(error)) error {
	pause := c.cfg.Watch.Retry
	for {
		err := c.stream(ctx, func(ev metadata.WatchEvent) {
			if ev.Kind != "" {
				pause = c.cfg.Watch.Retry
			}
			told(ev)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lost(err)
		background.Sleep(ctx, pause-rand.N(pause/2+1))
		pause = min(2*pause, c.cfg.Watch.Longest)
	}
}

var errSilent = errors.New("the stream was silent for too long")

// stream reads one stream to its end.
func (c *Client) stream(ctx context.Context, told func(metadata.WatchEvent)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.cfg.Timeout, func() { cancel(errSilent) })
	defer silent.Stop()
	resp, err := c.send(ctx, http.MethodGet, strings.TrimSuffix(c.base, "/engines")+"/watch", "text/event-stream", nil, nil)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxEventData))
		if err == nil {
			err = answerError(resp.StatusCode, b)
		}
		return cause(ctx, err)
	}
	var p eventParser
	buf := make([]byte, 4<<10)
	for {
		silent.Reset(c.cfg.Watch.Silence)
		n, err := resp.Body.Read(buf)
		if n > 0 {
			told(metadata.WatchEvent{})
		}
		if err := p.feed(buf[:n], func(kind string, data []byte) error {
			ev, err := parseEvent(metadata.WatchKind(kind), data)
			if err == nil && ev.Kind != "" {
				told(ev)
			}
			return err
		}); err != nil {
			return fmt.Errorf("metadata: watch: %w", err)
		}
		if err != nil {
			return cause(ctx, err)
		}
	}
}

// cause returns why ctx has ended, or err if it has not.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		err = c
	}
	return fmt.Errorf("metadata: watch: %w", err)
}

// parseEvent reads an event of a watch from bytes from anywhere. A kind that is not known gives an event without one.
func parseEvent(kind metadata.WatchKind, data []byte) (metadata.WatchEvent, error) {
	switch kind {
	case metadata.WatchSync:
		return metadata.WatchEvent{Kind: kind}, nil
	case metadata.WatchPut, metadata.WatchDelete:
	default:
		return metadata.WatchEvent{}, nil
	}
	ev := metadata.WatchEvent{Kind: kind}
	if err := json.Unmarshal(data, &ev.Incarnation); err != nil {
		return metadata.WatchEvent{}, fmt.Errorf("data of %s: %w", kind, err)
	}
	if err := metadata.ValidName(ev.Engine); err != nil {
		return metadata.WatchEvent{}, fmt.Errorf("data of %s: %w", kind, err)
	}
	return ev, nil
}
