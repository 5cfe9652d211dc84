package metadata

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// HandlerConfig bounds what the metadata routes take in.
type HandlerConfig struct {
	MaxTTL time.Duration `yaml:"max_ttl"` // of a record; default 5m
	// Skew is how far a publisher's clock may be off. Leases are durations, so that this only keeps nonsense out;
	// default 2h.
	Skew  time.Duration `yaml:"skew"`
	Store time.Duration `yaml:"store"` // time for one exchange with the store; default 5s
	Watch WatchConfig   `yaml:"watch"` // GET /metadata/v1/watch
}

func (c HandlerConfig) withDefaults() HandlerConfig {
	if c.MaxTTL == 0 {
		c.MaxTTL = 5 * time.Minute
	}
	if c.Skew == 0 {
		c.Skew = 2 * time.Hour
	}
	if c.Store == 0 {
		c.Store = 5 * time.Second
	}
	c.Watch = c.Watch.withDefaults()
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c HandlerConfig) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"max_ttl", c.MaxTTL}, {"skew", c.Skew}, {"store", c.Store}} {
		if f.d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v; want more than 0", f.name, f.d))
		}
	}
	return errors.Join(append(errs, c.Watch.validate())...)
}

// HandlerParts are what the metadata routes are built from.
type HandlerParts struct {
	Store      Store
	Authorizer Authorizer // decides on every request
	// Voucher signs the records that this gateway takes in and checks those that come signed; nil stores records as they
	// come. If it is an Enroller too, whoever has published a record is told his engine's enrolment keys.
	Voucher Voucher
	Pairs   func() []PairState // what GET /metadata/v1/pairs shows; nil: no pairs
	Log     *slog.Logger
}

// Handler serves the metadata routes of the agents' listener.
type Handler struct {
	store    Store
	auth     Authorizer
	voucher  Voucher
	enroller Enroller // nil: engines are not enrolled
	pairs    func() []PairState
	cfg      HandlerConfig
	log      *slog.Logger
	mux      *http.ServeMux
	watches  *watchHub
}

// NewHandler returns the routes.
func NewHandler(cfg HandlerConfig, parts HandlerParts) (*Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: handler: %w", err)
	}
	if parts.Store == nil || parts.Authorizer == nil || parts.Log == nil {
		return nil, errors.New("metadata: handler: want a store, an authorizer and a log")
	}
	h := &Handler{
		store: parts.Store, auth: parts.Authorizer, voucher: parts.Voucher, pairs: parts.Pairs,
		cfg: cfg.withDefaults(), log: parts.Log, mux: http.NewServeMux(),
	}
	h.enroller, _ = parts.Voucher.(Enroller)
	h.watches = newWatchHub(h.cfg, h.store, h.log)
	h.routes()
	return h, nil
}

func bad(reason, format string, args ...any) error {
	return &refusal{Status: http.StatusBadRequest, Reason: reason, Msg: fmt.Sprintf(format, args...)}
}

// target reads engine and rank from the path. A name that cannot exist is answered as one that does not.
func target(r *http.Request) (string, Rank, error) {
	engine := r.PathValue("engine")
	if err := ValidName(engine); err != nil {
		return "", Rank{}, fmt.Errorf("%w: %w", err, ErrNotFound)
	}
	if r.PathValue("dp") == "" {
		return engine, Rank{}, nil
	}
	rank, err := ParseRank(r.PathValue("dp") + "/" + r.PathValue("pp") + "/" + r.PathValue("tp"))
	if err != nil {
		return "", Rank{}, fmt.Errorf("%w: %w", err, ErrNotFound)
	}
	return engine, rank, nil
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) error {
	engine, rank, err := target(r)
	if err != nil {
		return err
	}
	if _, err := h.auth.Authorize(r, Access{Action: Write, Engine: engine, Rank: rank}); err != nil {
		return err
	}
	if got := r.Header.Get("Content-Type"); got != contentType {
		return &refusal{Status: http.StatusUnsupportedMediaType, Reason: "content_type", Msg: fmt.Sprintf("content type is %.80q; want %s", got, contentType)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxRecordBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &refusal{Status: http.StatusRequestEntityTooLarge, Reason: "too_large", Msg: fmt.Sprintf("record has more than %d bytes", MaxRecordBytes)}
	case err != nil:
		return bad("body", "the body ended early")
	}
	rec, err := Unmarshal(body)
	if err != nil {
		return bad("bad_record", "%.1000s", err.Error())
	}
	if rec.Engine != engine || rec.Rank != rank {
		return bad("wrong_rank", "record is of engine %s rank %v; the path names engine %s rank %v", rec.Engine, rec.Rank, engine, rank)
	}
	if err := h.timely(rec, time.Now()); err != nil {
		return err
	}
	if rec.Connector == "kvplane" {
		if err := rec.CheckAgent(); err != nil {
			return bad("wrong_agent", "%.1000s", err.Error())
		}
	}
	if rec, err = h.vouch(rec); err != nil {
		return err
	}
	if err := h.store.Put(r.Context(), rec); err != nil {
		return err
	}
	return h.enrol(w, rec.Incarnation)
}

// timely refuses records whose times are out of bounds.
func (h *Handler) timely(rec Record, now time.Time) error {
	switch {
	case rec.Lifetime() < time.Millisecond || rec.Lifetime() > h.cfg.MaxTTL:
		return bad("bad_record", "record lives %v; want 1ms to %v", rec.Lifetime(), h.cfg.MaxTTL)
	case rec.Published.After(now.Add(h.cfg.Skew)) || rec.Generation > uint64(now.Add(h.cfg.Skew).UnixNano()):
		return bad("clock", "record is of the future: published at %v, generation %x", rec.Published, rec.Generation)
	case rec.Expires.Before(now.Add(-h.cfg.Skew)):
		return fmt.Errorf("expired at %v: %w", rec.Expires, ErrStale)
	}
	return nil
}

// vouch checks the signature that a record came with, or signs it.
func (h *Handler) vouch(rec Record) (Record, error) {
	switch {
	case h.voucher == nil:
		return rec, nil
	case rec.KeyID == "" && len(rec.Signature) == 0:
		return rec.Sign(h.voucher)
	}
	if err := rec.Verify(h.voucher); err != nil {
		return Record{}, &refusal{Status: http.StatusForbidden, Reason: "bad_signature", Msg: "the record's signature is not accepted", Err: err}
	}
	return rec, nil
}

func (h *Handler) delete(w http.ResponseWriter, r *http.Request) error {
	engine, rank, err := target(r)
	if err != nil {
		return err
	}
	if _, err := h.auth.Authorize(r, Access{Action: Write, Engine: engine, Rank: rank}); err != nil {
		return err
	}
	generation, err := strconv.ParseUint(r.URL.Query().Get("generation"), 10, 64)
	if err != nil {
		return bad("generation", "generation is %.40q; want the record's, in decimal", r.URL.Query().Get("generation"))
	}
	if err := h.store.Delete(r.Context(), Incarnation{Engine: engine, Generation: generation}, rank); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
