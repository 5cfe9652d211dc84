package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/metadata"
)

// probing is how often a subscription is tried. What is announced is lost while a subscription is dead, and a dead
// one looks like a quiet one: the server may hang, be cut off, or not be the master any more.
const probing = 2 * time.Second

var errDeaf = errors.New("the subscription does not hear what is announced")

// Watch implements Store. While the server cannot be reached it returns an error soon; a subscription that is there
// again is announced as a Change without engine.
func (s *Store) Watch(ctx context.Context, changed func(metadata.Change)) error {
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	sub := s.db.Subscribe(watching, s.channel())
	defer sub.Close()
	unblock := context.AfterFunc(watching, func() { sub.Close() }) // a read of the subscription does not heed a context
	defer unblock()
	p := prober{text: "probe " + rand.Text()}
	trying := make(chan struct{})
	go func() {
		defer close(trying)
		if err := p.run(watching, s); err != nil {
			stop(err)
		}
	}()
	defer func() { stop(nil); <-trying }()
	for {
		got, err := sub.Receive(watching)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if cause := context.Cause(watching); cause != nil {
				err = cause
			}
			return fmt.Errorf("metadata: redis: watch: %w", err)
		}
		switch m := got.(type) {
		case *redis.Subscription:
			changed(metadata.Change{})
		case *redis.Message:
			if strings.HasPrefix(m.Payload, "probe ") {
				if m.Payload == p.text {
					p.heard.Store(true)
				}
				continue
			}
			c, err := parseMessage(m.Payload)
			if err != nil {
				s.quarantine.put(s.log, "(announcement)", "", err)
				continue
			}
			changed(c)
		}
	}
}

// prober finds out whether a subscription hears what is announced.
type prober struct {
	text  string // what is announced, and only this watcher knows
	heard atomic.Bool
}

// run announces the probe now and then, as changes are announced, and returns an error when one was not heard before
// the next, or could not be announced. It returns nil when ctx ends.
func (p *prober) run(ctx context.Context, s *Store) error {
	tick := time.NewTicker(s.probing)
	defer tick.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !first && !p.heard.Swap(false) {
			return errDeaf
		}
		if err := s.db.Publish(ctx, s.channel(), p.text).Err(); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// message writes a change as "put|delete generation rank engine published content"; without content it ends in "-".
func message(c metadata.Change) string {
	published, content := uint64(0), "-"
	if !c.Published.IsZero() {
		published = uint64(c.Published.UnixNano())
	}
	if c.Content != "" {
		content = c.Content
	}
	return messageHead(c) + " " + padded(published) + " " + content
}

// messageHead is a message without its last two words.
func messageHead(c metadata.Change) string {
	verb := "put"
	if c.Deleted {
		verb = "delete"
	}
	return verb + " " + padded(c.Generation) + " " + c.Rank.String() + " " + c.Engine
}

// parseMessage is the inverse of message for bytes from anywhere.
func parseMessage(s string) (metadata.Change, error) {
	f := strings.Split(s, " ")
	if len(f) != 6 || f[0] != "put" && f[0] != "delete" {
		return metadata.Change{}, fmt.Errorf("announcement %.80q is not verb, generation, rank, engine, published, content", s)
	}
	generation, err := parsePadded(f[1])
	if err != nil {
		return metadata.Change{}, err
	}
	rank, err := metadata.ParseRank(f[2])
	if err != nil {
		return metadata.Change{}, err
	}
	published, err := parsePublished(f[4])
	if err != nil {
		return metadata.Change{}, err
	}
	c := metadata.Change{Incarnation: metadata.Incarnation{Engine: f[3], Generation: generation}, Rank: rank, Deleted: f[0] == "delete", Published: published}
	switch {
	case len(f[5]) == metadata.ContentLen:
		c.Content = f[5]
	case f[5] != "-":
		return metadata.Change{}, fmt.Errorf("announcement's content %.40q is not a digest", f[5])
	}
	return c, metadata.ValidName(f[3])
}

// parsePublished reads when a record was published, in nanoseconds; 0 is not told.
func parsePublished(s string) (time.Time, error) {
	switch n, err := parsePadded(s); {
	case err != nil:
		return time.Time{}, err
	case n >= metadata.MaxPublished*uint64(time.Second):
		return time.Time{}, fmt.Errorf("time of publication %s is too late", s)
	case n == 0:
		return time.Time{}, nil
	default:
		return time.Unix(0, int64(n)).UTC(), nil
	}
}
