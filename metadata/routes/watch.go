package routes

import (
	"cmp"
	"errors"
	"time"

	"pdrouter/internal/field"
)

// WatchConfig bounds GET /metadata/v1/watch.
type WatchConfig struct {
	KeepAlive time.Duration `yaml:"keep_alive"` // longest silence on a stream, and how often its token is looked at again; default 15s
	Write     time.Duration `yaml:"write"`      // time for handing one write to the connection: a dead client is noticed after it; default 10s
	Watchers  int           `yaml:"watchers"`   // streams at once, others are answered with 503; default 4096
	PerCaller int           `yaml:"per_caller"` // streams at once of one engine's agents with the same ranks, or of one subject; others are answered with 503; default 8
	Buffer    int           `yaml:"buffer"`     // engines whose changes may wait for one slow reader, who is then told «sync» instead; default 4096
}

func (c WatchConfig) withDefaults() WatchConfig {
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.Write = cmp.Or(c.Write, 10*time.Second)
	c.Watchers = cmp.Or(c.Watchers, 4096)
	c.PerCaller = cmp.Or(c.PerCaller, 8)
	c.Buffer = cmp.Or(c.Buffer, 4096)
	return c
}

func (c WatchConfig) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"keep_alive", c.KeepAlive}, {"write", c.Write}} {
		if f.d < 0 {
			errs = append(errs, field.Errorf("watch."+f.name, "is %v; want more than 0", f.d))
		}
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"watchers", c.Watchers}, {"per_caller", c.PerCaller}, {"buffer", c.Buffer}} {
		if f.n < 0 {
			errs = append(errs, field.Errorf("watch."+f.name, "is %d; want more than 0", f.n))
		}
	}
	return errors.Join(errs...)
}

// WatchStats counts watches and what made their readers read everything again.
type WatchStats struct {
	Open int    // streams at present
	Lost uint64 // times the local copy became whole, at first and after it was out of touch with its store: all readers were told
	Slow uint64 // times one reader was told because more engines had changed than may wait for it
}
