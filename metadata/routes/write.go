package routes

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// writer returns which rank's record a request is about, and who sent it, if they may write that.
func (h *Handler) writer(r *http.Request) (engine string, rank metadata.Rank, caller Caller, err error) {
	if engine, rank, err = target(r); err == nil {
		caller, err = h.auth.Authorize(r, Access{Action: Write, Engine: engine, Rank: rank})
	}
	return engine, rank, caller, err
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) error {
	engine, rank, caller, err := h.writer(r)
	if err != nil {
		return err
	}
	if got := r.Header.Get("Content-Type"); got != metadata.ContentType {
		return &refusal.Error{Status: http.StatusUnsupportedMediaType, Reason: "content_type", Msg: fmt.Sprintf("content type is %.80q; want %s", got, metadata.ContentType)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, metadata.MaxRecordBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &refusal.Error{Status: http.StatusRequestEntityTooLarge, Reason: "too_large", Msg: fmt.Sprintf("record has more than %d bytes", metadata.MaxRecordBytes)}
	case err != nil:
		return bad("body", "the body ended early")
	}
	rec, err := metadata.Unmarshal(body)
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
	if caller.Role != "" && caller.Role != metadata.Both && rec.Role != caller.Role {
		return refusal.Forbidden("wrong_role", caller.Subject, fmt.Errorf("an agent of a %s engine; the record says %s", caller.Role, rec.Role))
	}
	if !caller.sized(rec) {
		return refusal.Forbidden("wrong_size", caller.Subject, fmt.Errorf("an agent of an engine of size %v; the record says %v", caller.Size, rec.Size))
	}
	if len(caller.Ranks) > 0 {
		if err := h.current(r.Context(), rec, time.Now()); err != nil {
			return err
		}
	}
	if rec, err = h.vouch(rec, caller, time.Now()); err != nil {
		return err
	}
	if err := h.store.Put(r.Context(), rec); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// timely refuses records whose times are out of bounds.
func (h *Handler) timely(rec metadata.Record, now time.Time) error {
	switch {
	case rec.Lifetime() < time.Millisecond || rec.Lifetime() > h.cfg.MaxTTL:
		return bad("bad_record", "record lives %v; want 1ms to %v", rec.Lifetime(), h.cfg.MaxTTL)
	case rec.Published.After(now.Add(h.cfg.Skew)) || rec.Generation > uint64(now.Add(h.cfg.Skew).UnixNano()):
		return bad("clock", "record is of the future: published at %v, generation %x", rec.Published, rec.Generation)
	case rec.Expires.Before(now.Add(-h.cfg.Skew)):
		return fmt.Errorf("expired at %v: %w", rec.Expires, metadata.ErrStale)
	}
	return nil
}

// maxAhead is how far an agent of single ranks may begin a generation ahead of the gateway's clock. A generation voids every
// earlier one, and with it the records of all other ranks: one of the far future would do so until then.
const maxAhead = time.Minute

// current refuses a record that begins a generation further ahead than that.
func (h *Handler) current(ctx context.Context, rec metadata.Record, now time.Time) error {
	if rec.Generation <= uint64(now.Add(maxAhead).UnixNano()) {
		return nil
	}
	known, err := h.store.Engine(ctx, rec.Engine)
	if err != nil && !errors.Is(err, metadata.ErrNotFound) {
		return err
	}
	if len(known) > 0 && known[0].Generation == rec.Generation {
		return nil // it has begun
	}
	return bad("clock", "generation %x is more than %v ahead, and the credentials are for single ranks", rec.Generation, maxAhead)
}

// vouch has the record vouched for. A caller whose credentials are bound to a key must have signed the record with it,
// so that a stolen token alone writes nothing; the gateway adds its word that the key may do so. Of other callers, the
// signature that a record came with is checked, and a record without one is signed.
func (h *Handler) vouch(rec metadata.Record, caller Caller, now time.Time) (metadata.Record, error) {
	var err error
	switch {
	case len(caller.Key) > 0:
		// The record's lease ends within its lifetime from now, by clocks that are off by no more than Skew.
		rec, err = rec.Bind(h.voucher, caller.Key, now.Add(rec.Lifetime()+h.cfg.Skew))
	case h.voucher == nil:
		return rec, nil
	case rec.KeyID == "" && len(rec.Signature) == 0 && len(rec.Binding) == 0:
		return rec.Sign(h.voucher)
	default:
		if err = rec.Verify(h.voucher); err != nil {
			err = fmt.Errorf("the record is signed, and the token is bound to no key (mint it with --confirm): %w", err)
		}
	}
	if err != nil {
		return metadata.Record{}, refusal.Forbidden("bad_signature", caller.Subject, err)
	}
	if b, err := metadata.Marshal(rec); err != nil || len(b) > metadata.MaxRecordBytes {
		return metadata.Record{}, &refusal.Error{Status: http.StatusRequestEntityTooLarge, Reason: "too_large", Msg: fmt.Sprintf("record has more than %d bytes when it is bound", metadata.MaxRecordBytes)}
	}
	return rec, nil
}

// checkProof wants the caller's signature under a withdrawal if its credentials are bound to a key.
func checkProof(r *http.Request, caller Caller, inc metadata.Incarnation, rank metadata.Rank) error {
	if len(caller.Key) == 0 {
		return nil
	}
	proof, err := base64.RawURLEncoding.Strict().DecodeString(r.Header.Get(metadata.ProofHeader))
	if err != nil || len(caller.Key) != ed25519.PublicKeySize || !ed25519.Verify(caller.Key, metadata.Withdrawal(inc, rank), proof) {
		return refusal.Forbidden("bad_signature", caller.Subject, fmt.Errorf("%s is not the agent's signature under the withdrawal of %s rank %v", metadata.ProofHeader, inc.ID(), rank))
	}
	return nil
}

func (h *Handler) delete(w http.ResponseWriter, r *http.Request) error {
	engine, rank, caller, err := h.writer(r)
	if err != nil {
		return err
	}
	generation, err := strconv.ParseUint(r.URL.Query().Get("generation"), 10, 64)
	if err != nil {
		return bad("generation", "generation is %.40q; want the record's, in decimal", r.URL.Query().Get("generation"))
	}
	inc := metadata.Incarnation{Engine: engine, Generation: generation}
	if err := checkProof(r, caller, inc, rank); err != nil {
		return err
	}
	if err := h.store.Delete(r.Context(), inc, rank); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
