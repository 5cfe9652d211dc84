package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
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
	return errors.Join(errs...)
}

// Handler serves the metadata routes of the agents' listener.
type Handler struct {
	store    Store
	auth     Authorizer
	voucher  Voucher
	enroller Enroller // nil: engines are not enrolled
	cfg      HandlerConfig
	log      *slog.Logger
	mux      *http.ServeMux
}

// NewHandler returns the routes over store. auth decides on every request. voucher signs the records that this gateway
// takes in and checks those that come signed; nil stores records as they come. If it is an Enroller too, whoever has
// published a record is told his engine's enrolment keys.
func NewHandler(store Store, auth Authorizer, voucher Voucher, cfg HandlerConfig, log *slog.Logger) (*Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: handler: %w", err)
	}
	if auth == nil {
		return nil, errors.New("metadata: handler: no authorizer")
	}
	h := &Handler{store: store, auth: auth, voucher: voucher, cfg: cfg.withDefaults(), log: log, mux: http.NewServeMux()}
	h.enroller, _ = voucher.(Enroller)
	const rank = "/metadata/v1/engines/{engine}/ranks/{dp}/{pp}/{tp}"
	h.handle("PUT "+rank, h.put)
	h.handle("GET "+rank, h.rank)
	h.handle("DELETE "+rank, h.delete)
	h.handle("GET /metadata/v1/engines", h.list)
	h.handle("GET /metadata/v1/engines/{engine}", h.engine)
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path.Clean(r.URL.Path) != r.URL.Path { // the mux would redirect
		(&refusal{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such route"}).write(w)
		return
	}
	if _, pattern := h.mux.Handler(r); pattern != "" {
		h.mux.ServeHTTP(w, r)
		return
	}
	// The mux would answer in plain text; what it says of other methods is kept.
	probe := httpProbe{header: http.Header{}}
	h.mux.ServeHTTP(&probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		(&refusal{Status: probe.status, Reason: "method", Msg: "this route does not take the method " + r.Method}).write(w)
		return
	}
	(&refusal{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such route"}).write(w)
}

// httpProbe takes in an answer that is not sent.
type httpProbe struct {
	header http.Header
	status int
}

func (p *httpProbe) Header() http.Header         { return p.header }
func (p *httpProbe) WriteHeader(status int)      { p.status = status }
func (p *httpProbe) Write(b []byte) (int, error) { return len(b), nil }

// handle routes pattern to f, gives it a deadline for the store, and turns its error into the answer.
func (h *Handler) handle(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Store)
		defer cancel()
		err := f(w, r.WithContext(ctx))
		if err == nil {
			return
		}
		ref := refuse(err)
		level := slog.LevelInfo
		if ref.Status == http.StatusUnauthorized || ref.Status == http.StatusForbidden || ref.Status >= 500 {
			level = slog.LevelWarn
		}
		h.log.Log(ctx, level, "metadata: refused", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "status", ref.Status, "err", ref)
		ref.write(w)
	})
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
	if err := h.auth.Authorize(r, Access{Action: Write, Engine: engine, Rank: rank}); err != nil {
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
	if err := h.auth.Authorize(r, Access{Action: Write, Engine: engine, Rank: rank}); err != nil {
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

// read returns an engine's records if the caller may have them. It asks twice: before the store is touched, and when
// the engine's role is known.
func (h *Handler) read(r *http.Request) ([]Record, Rank, error) {
	engine, rank, err := target(r)
	if err != nil {
		engine = "" // still only for those who may read something
	}
	if err := h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank}); err != nil {
		return nil, rank, err
	}
	if err != nil {
		return nil, rank, err
	}
	recs, err := h.store.Engine(r.Context(), engine)
	if err != nil {
		return nil, rank, err
	}
	return recs, rank, h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank, Role: recs[0].Role})
}

func (h *Handler) rank(w http.ResponseWriter, r *http.Request) error {
	recs, rank, err := h.read(r)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Rank == rank {
			return h.send(w, r, []Record{rec}, true)
		}
	}
	return fmt.Errorf("metadata: engine %s rank %v: %w", recs[0].Engine, rank, ErrNotFound)
}

func (h *Handler) engine(w http.ResponseWriter, r *http.Request) error {
	recs, _, err := h.read(r)
	if err != nil {
		return err
	}
	return h.send(w, r, recs, false)
}
