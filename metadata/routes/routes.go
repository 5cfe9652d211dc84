// Package routes serves the metadata routes of the agents' listener: agents publish and withdraw records, read those that pair with
// theirs, and watch what changes. It does not check tokens: the caller gives it an Authorizer (package auth has one). It keeps no
// records: a store does, and reads are answered from a local copy. The command mounts it.
//
// Read routes.go and mux.go, authorizer.go and access.go (who may read what) with shapes.go, write.go, view.go, pairs.go, proposal.go
// (the shape of vLLM's proposal), and then watch.go, hub.go, watcher.go and stream.go (the streams of changes).
package routes

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"pdrouter/internal/field"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// Config bounds what the metadata routes take in.
type Config struct {
	MaxTTL time.Duration `yaml:"max_ttl"` // of a record; default 5m
	// Skew is how far a publisher's clock may be off. Leases are durations, so that this only keeps nonsense out;
	// default 2h.
	Skew  time.Duration `yaml:"skew"`
	Store time.Duration `yaml:"store"` // time for one exchange with the store; default 5s
	Watch WatchConfig   `yaml:"watch"` // GET /metadata/v1/watch
}

func (c Config) withDefaults() Config {
	c.MaxTTL = cmp.Or(c.MaxTTL, 5*time.Minute)
	c.Skew = cmp.Or(c.Skew, 2*time.Hour)
	c.Store = cmp.Or(c.Store, 5*time.Second)
	c.Watch = c.Watch.withDefaults()
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"max_ttl", c.MaxTTL}, {"skew", c.Skew}, {"store", c.Store}} {
		if f.d < 0 {
			errs = append(errs, field.Errorf(f.name, "is %v; want more than 0", f.d))
		}
	}
	if c.Skew > metadata.FenceKept {
		errs = append(errs, field.Errorf("skew", "is %v; want at most %v, for which stores remember generations", c.Skew, metadata.FenceKept))
	}
	return errors.Join(append(errs, c.Watch.validate())...)
}

// Parts are what the metadata routes are built from.
type Parts struct {
	Store metadata.Store
	// Copy answers reads, whatever the store does, and tells watches what has changed; it must not have been filled yet.
	Copy       Copy
	Authorizer Authorizer // decides on every request
	// Voucher signs the records that this gateway takes in and checks those that come signed; nil stores records as they
	// come.
	Voucher metadata.Voucher
	Pairs   func() []metadata.PairState // what GET /metadata/v1/pairs shows; nil: no pairs
	// Paired reports whether two engines, in either order, stand as prefill and decode of one model in the gateway's own
	// configuration: agents of other engines do not read each other's records, whatever these say. nil knows no such rule.
	Paired func(x, y string) bool
	// Refused is told of each request that is refused, with the status and the reason that the log has; It must not block.
	// nil: there is no such function.
	Refused func(status int, reason string)
	Log     *slog.Logger
}

// Handler serves the metadata routes of the agents' listener.
type Handler struct {
	store   metadata.Store
	auth    Authorizer
	voucher metadata.Voucher
	pairs   func() []metadata.PairState
	paired  func(x, y string) bool // nil: any
	copy    Copy
	misses  chan struct{}
	shapes  *shapes
	refused func(status int, reason string)
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
	watches *watchHub
}

// New returns the routes.
func New(cfg Config, parts Parts) (*Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: handler: %w", err)
	}
	if parts.Store == nil || parts.Copy == nil || parts.Authorizer == nil || parts.Log == nil {
		return nil, errors.New("metadata: handler: want a store, a copy, an authorizer and a log")
	}
	h := &Handler{
		store: parts.Store, auth: denying{parts.Authorizer}, voucher: parts.Voucher, pairs: parts.Pairs, paired: parts.Paired,
		copy: parts.Copy, misses: make(chan struct{}, maxMisses), shapes: newShapes(),
		cfg: cfg.withDefaults(), log: parts.Log, mux: http.NewServeMux(),
	}
	if h.refused = parts.Refused; h.refused == nil {
		h.refused = func(int, string) {}
	}
	h.watches = newWatchHub(h.cfg.Watch, h.copy, h.shapes)
	h.routes()
	return h, nil
}

func bad(reason, format string, args ...any) error {
	return &refusal.Error{Status: http.StatusBadRequest, Reason: reason, Msg: fmt.Sprintf(format, args...)}
}

// target reads engine and rank from the path. A name that cannot exist is answered as one that does not.
func target(r *http.Request) (string, metadata.Rank, error) {
	engine := r.PathValue("engine")
	if err := metadata.ValidName(engine); err != nil {
		return "", metadata.Rank{}, fmt.Errorf("%w: %w", err, metadata.ErrNotFound)
	}
	if r.PathValue("dp") == "" {
		return engine, metadata.Rank{}, nil
	}
	rank, err := metadata.ParseRank(r.PathValue("dp") + "/" + r.PathValue("pp") + "/" + r.PathValue("tp"))
	if err != nil {
		return "", metadata.Rank{}, fmt.Errorf("%w: %w", err, metadata.ErrNotFound)
	}
	return engine, rank, nil
}
