package metadata

import (
	"errors"
	"fmt"
	"time"
)

// WatchConfig bounds GET /metadata/v1/watch.
type WatchConfig struct {
	KeepAlive time.Duration `yaml:"keep_alive"` // longest silence on a stream, and how often its token is looked at again; default 15s
	Write     time.Duration `yaml:"write"`      // time for handing one write to the connection: a dead client is noticed after it; default 10s
	Settle    time.Duration `yaml:"settle"`     // changes are gathered this long before they are told; default 5ms
	Retry     time.Duration `yaml:"retry"`      // pause after the store could not be watched or read; default 500ms
	Watchers  int           `yaml:"watchers"`   // streams at once, others are answered with 503; default 4096
	Buffer    int           `yaml:"buffer"`     // engines whose changes may wait for one slow reader, who is then told «sync» instead; default 4096
}

func (c WatchConfig) withDefaults() WatchConfig {
	for _, f := range []struct {
		d    *time.Duration
		want time.Duration
	}{{&c.KeepAlive, 15 * time.Second}, {&c.Write, 10 * time.Second}, {&c.Settle, 5 * time.Millisecond}, {&c.Retry, 500 * time.Millisecond}} {
		if *f.d == 0 {
			*f.d = f.want
		}
	}
	if c.Watchers == 0 {
		c.Watchers = 4096
	}
	if c.Buffer == 0 {
		c.Buffer = 4096
	}
	return c
}

func (c WatchConfig) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"keep_alive", c.KeepAlive}, {"write", c.Write}, {"settle", c.Settle}, {"retry", c.Retry}} {
		if f.d < 0 {
			errs = append(errs, fmt.Errorf("watch.%s is %v; want more than 0", f.name, f.d))
		}
	}
	if c.Watchers < 0 || c.Buffer < 0 {
		errs = append(errs, fmt.Errorf("watch.watchers and watch.buffer are %d and %d; want more than 0", c.Watchers, c.Buffer))
	}
	return errors.Join(errs...)
}

// WatchStats counts watches and what made their readers read everything again.
type WatchStats struct {
	Open int    // streams at present
	Lost uint64 // times the store could not say what had changed, as when it is followed at first or again: all readers were told
	Slow uint64 // times one reader was told because more engines had changed than may wait for it
}

// watchKind is the name of an event of a watch.
type watchKind string

const (
	watchSync   watchKind = "sync"   // anything may have changed; from here on every change is told
	watchPut    watchKind = "put"    // a rank's record is new or another one
	watchDelete watchKind = "delete" // a rank's record was withdrawn
	watchRenew  watchKind = "renew"  // the lease of a rank's record was renewed; told only to those who ask for it
)

// watchEvent is one event of a watch: what happened, and to which rank of which engine.
type watchEvent struct {
	kind watchKind
	inc  Incarnation
	rank Rank
	recs []Record // of the engine, or the last there were: they decide who may be told
}

// watchData is the data of an event.
type watchData struct {
	Incarnation
	Rank string `json:"rank"` // "dp/pp/tp"
}
